package v1

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// Rights returns the rules for VolumeSnapshots of the reconciler's role and of the roles that are aggregated into
// edit (and so admin) and view.
func Rights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		common.Rule(group, "volumesnapshots", "get", "list", "update", "watch"),
		common.Rule(group, "volumesnapshots/status", "update"),
		common.Rule(group, "volumesnapshotcontents", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "volumesnapshotclasses", "get", "list", "watch"),
		common.Rule("", "persistentvolumeclaims", "get", "list", "update", "watch"),
		common.Rule("", "persistentvolumes", "get", "list", "watch"),
		common.Rule(Groups.Group, "volumegroupsnapshots", "get", "list", "watch"),
		common.Rule(Groups.Group, "volumegroupsnapshotcontents", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{
		common.Rule(group, "volumesnapshots", "create", "delete", "deletecollection", "patch", "update"),
	}
	view = []rbacv1.PolicyRule{
		common.Rule(group, "volumesnapshots", "get", "list", "watch"), common.Rule(group, "volumesnapshots/status", "get"),
		common.Rule(group, "volumesnapshotclasses", "get", "list", "watch"),
	}
	return controller, edit, view
}

// ContentRights returns the rules for VolumeSnapshotContents, for the reconciler that takes snapshots of local
// volumes. Only administrators have access to contents, because a content can refer to any volume of a driver.
func ContentRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "volumesnapshotcontents", "get", "list", "update", "watch"),
		common.Rule(group, "volumesnapshotcontents/status", "update"),
		common.Rule(group, "volumesnapshots", "get", "list", "watch"),
		common.Rule("storage.k8s.io", "storageclasses", "get", "list", "watch"),
		common.Rule("", "persistentvolumes", "create", "get", "list", "update", "watch"),
		common.Rule("", "persistentvolumeclaims", "get", "list", "watch"),
		common.Rule("", "nodes", "get", "list", "watch"), common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// NoRights returns no rules: for classes, which have no reconciler, and for contents of groups, which the
// reconciler of VolumeGroupSnapshots handles.
func NoRights() (controller, edit, view []rbacv1.PolicyRule) { return nil, nil, nil }

// GroupRights returns the rules for VolumeGroupSnapshots.
func GroupRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := Groups.Group
	controller = []rbacv1.PolicyRule{
		common.Rule(group, "volumegroupsnapshots", "get", "list", "update", "watch"),
		common.Rule(group, "volumegroupsnapshots/status", "update"),
		common.Rule(group, "volumegroupsnapshotcontents", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "volumegroupsnapshotclasses", "get", "list", "watch"),
		common.Rule(GroupVersion.Group, "volumesnapshots", "create", "delete", "get", "list", "watch"),
		common.Rule(GroupVersion.Group, "volumesnapshotcontents", "create", "get", "list", "watch"),
		common.Rule(GroupVersion.Group, "volumesnapshotcontents/status", "update"),
		common.Rule("", "persistentvolumeclaims", "get", "list", "watch"),
		common.Rule("", "persistentvolumes", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{
		common.Rule(group, "volumegroupsnapshots", "create", "delete", "deletecollection", "patch", "update"),
	}
	view = []rbacv1.PolicyRule{
		common.Rule(group, "volumegroupsnapshots", "get", "list", "watch"),
		common.Rule(group, "volumegroupsnapshots/status", "get"),
		common.Rule(group, "volumegroupsnapshotclasses", "get", "list", "watch"),
	}
	return controller, edit, view
}

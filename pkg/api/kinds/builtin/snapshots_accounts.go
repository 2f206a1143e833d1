package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

// snapshotAccounts returns the accounts of the reconcilers of volume snapshots, of contents (it takes the snapshots of
// local volumes), and of groups. Users have no access to contents, because a content can refer to any volume of a
// driver.
func snapshotAccounts() []own.Account {
	group, groups := snapshots.GroupVersion.Group, snapshots.Groups.Group
	read := []string{"get", "list", "watch"}
	events := rule("", "events", "create", "patch", "update")
	return []own.Account{
		{Name: "volumesnapshot-controller", Rules: []rbacv1.PolicyRule{
			rule(group, "volumesnapshots", "get", "list", "update", "watch"), rule(group, "volumesnapshots/status", "update"),
			rule(group, "volumesnapshotcontents", "create", "delete", "get", "list", "update", "watch"),
			rule(group, "volumesnapshotclasses", read...),
			rule("", "persistentvolumeclaims", "get", "list", "update", "watch"), rule("", "persistentvolumes", read...),
			rule(groups, "volumegroupsnapshots", read...), rule(groups, "volumegroupsnapshotcontents", read...), events,
		}},
		{Name: "volumesnapshotcontent-controller", Rules: []rbacv1.PolicyRule{
			rule(group, "volumesnapshotcontents", "get", "list", "update", "watch"),
			rule(group, "volumesnapshotcontents/status", "update"), rule(group, "volumesnapshots", read...),
			rule("storage.k8s.io", "storageclasses", read...),
			rule("", "persistentvolumes", "create", "get", "list", "update", "watch"),
			rule("", "persistentvolumeclaims", read...), rule("", "nodes", read...), events,
		}},
		{Name: "volumegroupsnapshot-controller", Rules: []rbacv1.PolicyRule{
			rule(groups, "volumegroupsnapshots", "get", "list", "update", "watch"),
			rule(groups, "volumegroupsnapshots/status", "update"),
			rule(groups, "volumegroupsnapshotcontents", "create", "delete", "get", "list", "update", "watch"),
			rule(groups, "volumegroupsnapshotclasses", read...),
			rule(group, "volumesnapshots", "create", "delete", "get", "list", "watch"),
			rule(group, "volumesnapshotcontents", "create", "get", "list", "watch"),
			rule(group, "volumesnapshotcontents/status", "update"),
			rule("", "persistentvolumeclaims", read...), rule("", "persistentvolumes", read...), events,
		}},
	}
}

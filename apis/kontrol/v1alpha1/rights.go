package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// ClusterRights returns the rules for the reconciler of Clusters. No function in this file adds rules to the roles
// edit, admin and view: a writer of Resources acts on clusters with the clusters' credentials, and Resources may
// contain Secrets. Only cluster administrators (cluster-admin) read and write them.
func ClusterRights() (controller, edit, view []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
		common.Rule(GroupVersion.Group, "clusters", "get", "list", "watch"),
		common.Rule(GroupVersion.Group, "clusters/status", "update"),
		common.Rule("", "secrets", "get", "list", "watch"), common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// ResourceRights returns the rules for the reconciler that sums up states and releases deleted Resources.
func ResourceRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "resources", "get", "list", "watch", "update", "patch"),
		common.Rule(group, "resources/status", "update"), common.Rule(group, "resources/finalizers", "update"),
		common.Rule(group, "clusters", "get", "list", "watch"), common.Rule(group, "appliedstates", "get", "list", "watch"),
		common.Rule(group, "currentstates", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// AppliedRights returns the rules for the reconciler that applies objects. It may do everything, because the local
// cluster can be a target and a Resource can contain any object.
func AppliedRights() (controller, edit, view []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
		common.Rule("*", "*", "*"), {NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
	}, nil, nil
}

// StateRights returns the rules for the same reconciler if no cluster is local: on another API server, whose
// administrator decides what else the operator may do there.
func StateRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "appliedstates", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "currentstates", "get", "list", "watch"),
		common.Rule(group, "resources", "get", "list", "watch"), common.Rule(group, "clusters", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// BundleRights returns the rules for the reconciler that creates Resources from Bundles.
func BundleRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "bundles", "get", "list", "watch"), common.Rule(group, "bundles/status", "update"),
		common.Rule(group, "bundles/finalizers", "update"),
		common.Rule(group, "resources", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "clusters", "get", "list", "watch"),
		common.Rule(group, "appliedstates", "get", "list", "watch"), common.Rule("", "configmaps", "get", "list", "watch"),
		common.Rule("", "secrets", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// CurrentRights returns the rules for the watcher.
func CurrentRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "currentstates", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "appliedstates", "get", "list", "watch"),
		common.Rule(group, "resources", "get", "list", "watch"), common.Rule(group, "clusters", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

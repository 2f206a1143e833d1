package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// ClusterRights, ResourceRights, AppliedRights and CurrentRights return the rules of the kinds' reconcilers. They add
// nothing to the roles edit, admin and view: who writes Resources acts on clusters with the clusters' credentials, and
// Resources may contain what Secrets do. Administrators of the cluster (cluster-admin) read and write them.
func ClusterRights() (controller, edit, view []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
		common.Rule(GroupVersion.Group, "clusters", "get", "list", "watch"),
		common.Rule(GroupVersion.Group, "clusters/status", "update"),
		common.Rule("", "secrets", "get", "list", "watch"), common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// ResourceRights is for the reconciler that sums up the states, and lets go of deleted Resources.
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

// AppliedRights is for the reconciler that applies. It may do everything, since the local cluster can be a target, and
// a Resource have any object.
func AppliedRights() (controller, edit, view []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
		common.Rule("*", "*", "*"), {NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
	}, nil, nil
}

// StateRights is for the same reconciler where no cluster is local: on another API server than ours, whose
// administrator says what an operator may do there besides.
func StateRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "appliedstates", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "currentstates", "get", "list", "watch"),
		common.Rule(group, "resources", "get", "list", "watch"), common.Rule(group, "clusters", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// BundleRights is for the reconciler that makes Resources of Bundles.
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

// CurrentRights is for the watcher.
func CurrentRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		common.Rule(group, "currentstates", "create", "delete", "get", "list", "update", "watch"),
		common.Rule(group, "appliedstates", "get", "list", "watch"),
		common.Rule(group, "resources", "get", "list", "watch"), common.Rule(group, "clusters", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

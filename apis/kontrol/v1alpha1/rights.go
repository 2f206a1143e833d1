package v1alpha1

import rbacv1 "k8s.io/api/rbac/v1"

// ClusterRights, ResourceRights, AppliedRights and CurrentRights return the rules of the kinds' reconcilers. They add nothing to the roles
// edit, admin and view: who writes Resources acts on clusters with the clusters' credentials, and Resources may contain what Secrets do.
// Administrators of the cluster (cluster-admin) read and write them.
func ClusterRights() (controller, edit, view []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{
		rule(GroupVersion.Group, "clusters", "get", "list", "watch"), rule(GroupVersion.Group, "clusters/status", "update"),
		rule("", "secrets", "get", "list", "watch"), rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// ResourceRights is for the reconciler that sums up the states, and lets go of deleted Resources.
func ResourceRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		rule(group, "resources", "get", "list", "watch", "update", "patch"), rule(group, "resources/status", "update"), rule(group, "resources/finalizers", "update"),
		rule(group, "clusters", "get", "list", "watch"), rule(group, "appliedstates", "get", "list", "watch"), rule(group, "currentstates", "get", "list", "watch"),
		rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// AppliedRights is for the reconciler that applies. It may do everything, since the local cluster can be a target, and a Resource have any
// object.
func AppliedRights() (controller, edit, view []rbacv1.PolicyRule) {
	return []rbacv1.PolicyRule{rule("*", "*", "*"), {NonResourceURLs: []string{"*"}, Verbs: []string{"*"}}}, nil, nil
}

// StateRights is for the same reconciler where no cluster is local: on another API server than ours, whose administrator says what an operator may
// do there besides.
func StateRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		rule(group, "appliedstates", "create", "delete", "get", "list", "update", "watch"), rule(group, "currentstates", "get", "list", "watch"),
		rule(group, "resources", "get", "list", "watch"), rule(group, "clusters", "get", "list", "watch"), rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// BundleRights is for the reconciler that makes Resources of Bundles.
func BundleRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		rule(group, "bundles", "get", "list", "watch"), rule(group, "bundles/status", "update"), rule(group, "bundles/finalizers", "update"),
		rule(group, "resources", "create", "delete", "get", "list", "update", "watch"), rule(group, "clusters", "get", "list", "watch"),
		rule(group, "appliedstates", "get", "list", "watch"), rule("", "configmaps", "get", "list", "watch"), rule("", "secrets", "get", "list", "watch"),
		rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

// CurrentRights is for the watcher.
func CurrentRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	return []rbacv1.PolicyRule{
		rule(group, "currentstates", "create", "delete", "get", "list", "update", "watch"), rule(group, "appliedstates", "get", "list", "watch"),
		rule(group, "resources", "get", "list", "watch"), rule(group, "clusters", "get", "list", "watch"), rule("", "events", "create", "patch", "update"),
	}, nil, nil
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

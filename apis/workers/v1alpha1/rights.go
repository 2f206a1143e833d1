package v1alpha1

import rbacv1 "k8s.io/api/rbac/v1"

// Rights returns the rules of the kind's roles: for its reconciler, and those aggregated into edit (and so admin) and
// view. Who may edit may also send messages.
func Rights() (controller, edit, view []rbacv1.PolicyRule) {
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		rule(group, "workers", "get", "list", "watch"), rule(group, "workers/status", "update"), rule(group, "workers/finalizers", "update"),
		rule("apps", "replicasets", "create", "delete", "get", "list", "update", "watch"), rule("", "services", "create", "get", "list", "update", "watch"),
		rule("", "pods", "get", "list", "watch"), rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{
		rule(group, "workers", "create", "delete", "deletecollection", "patch", "update"),
		rule("", "pods/message", "create"), rule("", "services/message", "create"),
	}
	view = []rbacv1.PolicyRule{rule(group, "workers", "get", "list", "watch"), rule(group, "workers/status", "get")}
	return controller, edit, view
}

package v1alpha1

import rbacv1 "k8s.io/api/rbac/v1"

// Rights returns the rules of the kind's roles: for its reconciler, and those aggregated into edit (and so admin) and
// view.
func Rights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		rule(group, "tasks", "get", "list", "watch"), rule(group, "tasks/status", "update"), rule(group, "tasks/finalizers", "update"),
		rule(group, "tasks", "delete"),
		rule("", "pods", "create", "delete", "get", "list", "patch", "update", "watch"), rule("", "nodes", "get", "list", "watch"),
		rule("coordination.k8s.io", "leases", "get", "list", "watch"),
		rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{rule(group, "tasks", "create", "delete", "deletecollection", "patch", "update")}
	view = []rbacv1.PolicyRule{rule(group, "tasks", "get", "list", "watch"), rule(group, "tasks/status", "get"), rule(group, "tasks/log", "get")}
	return controller, edit, view
}

// ScheduleRights is Rights of schedules.
func ScheduleRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		rule(group, "taskschedules", "get", "list", "watch"), rule(group, "taskschedules/status", "update"), rule(group, "taskschedules/finalizers", "update"),
		rule(group, "tasks", "create", "delete", "get", "list", "watch"), rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{rule(group, "taskschedules", "create", "delete", "deletecollection", "patch", "update")}
	view = []rbacv1.PolicyRule{rule(group, "taskschedules", "get", "list", "watch"), rule(group, "taskschedules/status", "get")}
	return controller, edit, view
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

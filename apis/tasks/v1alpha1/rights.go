package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// Rights returns the rules for Tasks of the reconciler's role and of the roles that are aggregated into edit (and
// so admin) and view.
func Rights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		common.Rule(group, "tasks", "get", "list", "watch"), common.Rule(group, "tasks/status", "update"),
		common.Rule(group, "tasks/finalizers", "update"),
		common.Rule(group, "tasks", "delete"),
		common.Rule("", "pods", "create", "delete", "get", "list", "patch", "update", "watch"),
		common.Rule("", "nodes", "get", "list", "watch"),
		common.Rule("", "resourcequotas", "get", "list", "watch"),
		common.Rule("coordination.k8s.io", "leases", "get", "list", "watch"),
		common.Rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{common.Rule(group, "tasks", "create", "delete", "deletecollection", "patch", "update")}
	view = []rbacv1.PolicyRule{
		common.Rule(group, "tasks", "get", "list", "watch"), common.Rule(group, "tasks/status", "get"),
		common.Rule(group, "tasks/log", "get"), common.Rule(group, "tasks/output", "get"),
	}
	return controller, edit, view
}

// ScheduleRights returns the same rules for TaskSchedules.
func ScheduleRights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		common.Rule(group, "taskschedules", "get", "list", "watch"), common.Rule(group, "taskschedules/status", "update"),
		common.Rule(group, "taskschedules/finalizers", "update"),
		common.Rule(group, "tasks", "create", "delete", "get", "list", "watch"),
		common.Rule("", "pods", "create"), // tasks with some fields need it
		common.Rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{
		common.Rule(group, "taskschedules", "create", "delete", "deletecollection", "patch", "update"),
	}
	view = []rbacv1.PolicyRule{
		common.Rule(group, "taskschedules", "get", "list", "watch"), common.Rule(group, "taskschedules/status", "get"),
	}
	return controller, edit, view
}

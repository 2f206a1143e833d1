package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// Rights returns the rules of the kind's roles: for its reconciler, and those aggregated into edit (and so admin) and
// view. A user who may edit may also send messages.
func Rights() (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	controller = []rbacv1.PolicyRule{
		common.Rule(group, "workers", "get", "list", "watch"), common.Rule(group, "workers/status", "update"),
		common.Rule(group, "workers/finalizers", "update"),
		common.Rule("apps", "replicasets", "create", "delete", "get", "list", "update", "watch"),
		common.Rule("", "services", "create", "get", "list", "update", "watch"),
		common.Rule("", "pods", "get", "list", "watch"), common.Rule("", "events", "create", "patch", "update"),
	}
	edit = []rbacv1.PolicyRule{
		common.Rule(group, "workers", "create", "delete", "deletecollection", "patch", "update"),
		common.Rule(group, "workers/scale", "patch", "update"),
		common.Rule("", "pods/message", "create"), common.Rule("", "services/message", "create"),
		common.Rule(group, "workers/queue", "create", "delete"),
	}
	view = []rbacv1.PolicyRule{
		common.Rule(group, "workers", "get", "list", "watch"), common.Rule(group, "workers/status", "get"),
		common.Rule(group, "workers/scale", "get"), common.Rule(group, "workers/queue", "get"),
	}
	return controller, edit, view
}

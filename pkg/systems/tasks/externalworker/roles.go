package externalworker

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

const account = "external-worker-controller"

// Roles returns the role of the reconciler and its binding.
func Roles() []client.Object {
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:controller:" + account), Rules: []rbacv1.PolicyRule{
		rule("", []string{"get", "list", "watch"}, "nodes", "pods"),
		rule("", []string{"update"}, "nodes/status", "pods/status"),
		rule("", []string{"delete"}, "pods"),
		rule("coordination.k8s.io", []string{"get", "list", "watch"}, "leases"),
		rule("", []string{"create", "patch", "update"}, "events"),
	}}
	return []client.Object{role, own.ControllerBinding(role, account)}
}

package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// restUser is the user of the REST facade, and the name of its role.
const restUser = "system:coracle:rest"

// restRoles returns the roles of the REST facade and of the reconciler of external workers, with their bindings.
func restRoles() []client.Object {
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	facade := &rbacv1.ClusterRole{ObjectMeta: roleMeta(restUser), Rules: []rbacv1.PolicyRule{
		rule(tasks.GroupVersion.Group, []string{"get", "list", "watch", "create", "delete"}, "tasks"),
		rule(kontrol.GroupVersion.Group, []string{"list", "create", "update", "delete"}, "resources", "bundles"),
		rule(kontrol.GroupVersion.Group, []string{"update"}, "bundles/status", "resources/status"),
		rule(kontrol.GroupVersion.Group, []string{"list"}, "appliedstates", "currentstates"),
		rule("", []string{"get", "list", "create", "delete"}, "pods", "nodes"),
		rule("", []string{"get", "list", "create", "update", "delete"}, "services"),
		rule("", []string{"update"}, "pods/status", "nodes/status"),
		rule("", []string{"get"}, "pods/log"),
		rule("discovery.k8s.io", []string{"list"}, "endpointslices"),
		rule("coordination.k8s.io", []string{"get", "list", "create", "update"}, "leases"),
	}}
	const account = "external-worker-controller"
	workers := &rbacv1.ClusterRole{ObjectMeta: roleMeta("system:controller:" + account), Rules: []rbacv1.PolicyRule{
		rule("", []string{"get", "list", "watch"}, "nodes", "pods"),
		rule("", []string{"update"}, "nodes/status", "pods/status"),
		rule("", []string{"delete"}, "pods"),
		rule("coordination.k8s.io", []string{"get", "list", "watch"}, "leases"),
		rule("", []string{"create", "patch", "update"}, "events"),
	}}
	return []client.Object{
		facade, roleBinding(facade, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: restUser}),
		workers, controllerBinding(workers, account),
	}
}

// Package identity defines the user of the REST facade and its rights.
package identity

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

// User is the name under which the facade reads and writes. The ClusterRole of the same name has its rights.
const User = "system:coracle:rest"

// Roles returns the ClusterRole of the facade, named like its user, and its binding.
func Roles() []client.Object {
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	facade := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta(User), Rules: []rbacv1.PolicyRule{
		rule(taskapi.GroupVersion.Group, []string{"get", "list", "watch", "create", "delete"}, "tasks"),
		rule(kontrol.GroupVersion.Group, []string{"list", "create", "update", "delete"}, "resources", "bundles"),
		rule(kontrol.GroupVersion.Group, []string{"update"}, "bundles/status", "resources/status"),
		rule(kontrol.GroupVersion.Group, []string{"list"}, "appliedstates", "currentstates"),
		rule(kontrol.GroupVersion.Group, []string{"get", "list"}, "clusters"),
		rule("", []string{"get", "list", "create", "delete"}, "pods", "nodes"),
		rule("", []string{"get", "list", "create", "update", "delete"}, "services"),
		rule("", []string{"create"}, "namespaces"),
		rule("", []string{"update"}, "pods/status", "nodes/status"),
		rule("", []string{"get"}, "pods/log"),
		rule("", []string{"create"}, "pods/binding"),
		rule("discovery.k8s.io", []string{"list"}, "endpointslices"),
		rule("coordination.k8s.io", []string{"get", "list", "create", "update"}, "leases"),
	}}
	return []client.Object{
		facade, own.RoleBinding(facade, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: User}),
	}
}

package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// messageRoles let nodes send the messages of pods that ended to other pods of their workers.
func messageRoles() []client.Object {
	role := &rbacv1.ClusterRole{ObjectMeta: roleMeta("system:coracle:node-messages"), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services/message"}, Verbs: []string{"create"}},
	}}
	return []client.Object{role, roleBinding(role, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.NodesGroup})}
}

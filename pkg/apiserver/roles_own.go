package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownRoles are what our own kinds add to upstream's: the rights of their reconcilers, and those of people with the
// aggregated roles admin, edit and view.
func ownRoles() []client.Object {
	const group, task = "tasks.coracle.dev", "system:controller:task-controller"
	label := map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}
	annotations := map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}
	meta := func(name, aggregate string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: annotations}
		for k, v := range label {
			m.Labels[k] = v
		}
		if aggregate != "" {
			m.Labels["rbac.authorization.kubernetes.io/aggregate-to-"+aggregate] = "true"
		}
		return m
	}
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta(task, ""), Rules: []rbacv1.PolicyRule{
			rule(group, "tasks", "get", "list", "watch"), rule(group, "tasks/status", "update"), rule(group, "tasks/finalizers", "update"),
			rule("", "pods", "create", "delete", "get", "list", "watch"), rule("", "nodes", "get", "list", "watch"),
			rule("", "events", "create", "patch", "update"),
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta(task, ""), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: task},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "task-controller"}},
		},
		&rbacv1.ClusterRole{ObjectMeta: meta("system:coracle:aggregate-to-edit", "edit"), Rules: []rbacv1.PolicyRule{
			rule(group, "tasks", "create", "delete", "deletecollection", "patch", "update"),
		}},
		&rbacv1.ClusterRole{ObjectMeta: meta("system:coracle:aggregate-to-view", "view"), Rules: []rbacv1.PolicyRule{
			rule(group, "tasks", "get", "list", "watch"), rule(group, "tasks/status", "get"),
		}},
	}
}

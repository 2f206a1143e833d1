package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Roles returns the roles and bindings of every cluster: upstream's bootstrap policy and those for Coracle's own kinds.
// Aggregated cluster roles come without the aggregated rules.
func Roles() []client.Object {
	var all []client.Object
	all = pointers(all, bootstrappolicy.ClusterRoles())
	all = pointers(all, bootstrappolicy.ClusterRoleBindings())
	all = pointers(all, bootstrappolicy.ControllerRoles())
	all = pointers(all, bootstrappolicy.ControllerRoleBindings())
	// These are package variables of upstream, so they are copied.
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for i := range roles {
			role := roles[i].DeepCopy()
			role.Namespace = namespace
			all = append(all, role)
		}
	}
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for i := range bindings {
			binding := bindings[i].DeepCopy()
			binding.Namespace = namespace
			all = append(all, binding)
		}
	}
	all = append(all, usageRole())
	all = append(all, kubeletBundleRoles()...)
	all = append(all, restRoles()...)
	all = append(all, messageRoles()...)
	all = append(all, policyRoles()...)
	return append(all, ourRoles()...)
}

func pointers[T any, P object[T]](all []client.Object, list []T) []client.Object {
	for i := range list {
		all = append(all, P(&list[i]))
	}
	return all
}

// aggregateTo, with the name of an aggregated role, is the label that includes a role's rules in that role.
const aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"

// ourRoles returns the role and binding of the reconciler of each own kind, and two roles aggregated into edit and
// view.
func ourRoles() []client.Object {
	edit := &rbacv1.ClusterRole{ObjectMeta: roleMeta("system:coracle:aggregate-to-edit")}
	edit.Labels[aggregateTo+"edit"] = "true"
	view := &rbacv1.ClusterRole{ObjectMeta: roleMeta("system:coracle:aggregate-to-view")}
	view.Labels[aggregateTo+"view"] = "true"
	all := []client.Object{edit, view}
	for _, o := range ours() {
		controller, edits, views := o.rights()
		edit.Rules, view.Rules = append(edit.Rules, edits...), append(view.Rules, views...)
		if controller == nil {
			continue // nothing acts on it
		}
		account := o.row.Singular + "-controller"
		role := &rbacv1.ClusterRole{ObjectMeta: roleMeta("system:controller:" + account), Rules: controller}
		all = append(all, role, controllerBinding(role, account))
	}
	return all
}

// controllerBinding gives a role to a service account of kube-system.
func controllerBinding(role *rbacv1.ClusterRole, account string) client.Object {
	return roleBinding(role, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: account})
}

// roleBinding gives a role to a subject, in a binding of the role's name.
func roleBinding(role *rbacv1.ClusterRole, subject rbacv1.Subject) client.Object {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: roleMeta(role.Name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{subject},
	}
}

func roleMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}}
}

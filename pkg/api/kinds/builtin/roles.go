package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

// Roles returns the roles and bindings of every cluster: upstream's bootstrap policy, and the roles of Coracle's own
// kinds and of extensions. Aggregated cluster roles do not have the aggregated rules yet.
func Roles(extensions ...own.Extension) []client.Object {
	var all []client.Object
	all = pointers(all, bootstrappolicy.ClusterRoles())
	all = pointers(all, bootstrappolicy.ClusterRoleBindings())
	all = pointers(all, bootstrappolicy.ControllerRoles())
	all = pointers(all, bootstrappolicy.ControllerRoleBindings())
	// Copy these package variables of upstream.
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
	all = append(all, policyRoles()...)
	return append(all, extensionRoles(append([]own.Extension{ours()}, extensions...))...)
}

func pointers[T any, P object[T]](all []client.Object, list []T) []client.Object {
	for i := range list {
		all = append(all, P(&list[i]))
	}
	return all
}

// aggregateTo, followed by the name of an aggregated role, is the label that adds a role's rules to it.
const aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"

// extensionRoles returns the roles of extensions, a role and binding for the reconciler of each of their kinds, and
// two roles aggregated into edit and view.
func extensionRoles(extensions []own.Extension) []client.Object {
	edit := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:coracle:aggregate-to-edit")}
	edit.Labels[aggregateTo+"edit"] = "true"
	view := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:coracle:aggregate-to-view")}
	view.Labels[aggregateTo+"view"] = "true"
	all := []client.Object{edit, view}
	for _, e := range extensions {
		all = append(all, e.Roles...)
		for _, k := range e.Kinds {
			controller, edits, views := k.Rights()
			edit.Rules, view.Rules = append(edit.Rules, edits...), append(view.Rules, views...)
			if controller == nil {
				continue // the kind has no reconciler
			}
			account := k.Row.Singular + "-controller"
			role := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:controller:" + account), Rules: controller}
			all = append(all, role, own.ControllerBinding(role, account))
		}
	}
	return all
}

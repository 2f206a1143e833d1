package builtin

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Roles returns the roles and bindings of every cluster: upstream's bootstrap policy, and the roles of Coracle's own
// kinds, of extensions and of their reconcilers' accounts. Aggregated cluster roles do not have the aggregated rules
// yet.
func Roles(accounts []own.Account, extensions ...own.Extension) []client.Object {
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
	all = append(all, extensionRoles(append([]own.Extension{ours()}, extensions...))...)
	for _, a := range append(snapshotAccounts(), accounts...) {
		role := &rbacv1.ClusterRole{
			ObjectMeta: own.RoleMeta("system:controller:" + a.Name), Rules: slices.Concat(a.Rules, a.Further),
		}
		all = append(all, role, own.ControllerBinding(role, a.Name))
	}
	return all
}

func pointers[T any, P object[T]](all []client.Object, list []T) []client.Object {
	for i := range list {
		all = append(all, P(&list[i]))
	}
	return all
}

// aggregateTo, followed by the name of an aggregated role, is the label that adds a role's rules to it.
const aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"

// extensionRoles returns the roles of extensions, and the roles aggregated into edit and view for their kinds.
func extensionRoles(extensions []own.Extension) []client.Object {
	edit := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:coracle:aggregate-to-edit")}
	edit.Labels[aggregateTo+"edit"] = "true"
	view := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:coracle:aggregate-to-view")}
	view.Labels[aggregateTo+"view"] = "true"
	all := []client.Object{edit, view}
	for _, e := range extensions {
		all = append(all, e.Roles...)
		for _, k := range e.Kinds {
			r := k.Row
			if k.View {
				view.Rules = append(view.Rules, rule(r.Group, r.Plural, readVerbs...))
				view.Rules = append(view.Rules, subresourceRules(r.GR(), r.Subresources, readVerbs)...)
				if r.Status != nil {
					view.Rules = append(view.Rules, rule(r.Group, r.Plural+"/status", "get"))
				}
			}
			if k.Edit {
				edit.Rules = append(edit.Rules, rule(r.Group, r.Plural, writeVerbs...))
				edit.Rules = append(edit.Rules, subresourceRules(r.GR(), r.Subresources, writeVerbs)...)
			}
		}
		for gvk, more := range e.Subresources {
			resource, _ := meta.UnsafeGuessKindToResource(gvk)
			edit.Rules = append(edit.Rules, subresourceRules(resource.GroupResource(), more, writeVerbs)...)
		}
	}
	return all
}

var (
	readVerbs  = []string{"get", "list", "watch"}
	writeVerbs = []string{"create", "delete", "deletecollection", "patch", "update"}
)

// subresourceRules returns the rules for the verbs that subresources support.
func subresourceRules(of schema.GroupResource, list []kind.Subresource, verbs []string) (rules []rbacv1.PolicyRule) {
	for _, s := range list {
		may := slices.DeleteFunc(slices.Clone(s.Verbs), func(v string) bool { return !slices.Contains(verbs, v) })
		if len(may) > 0 {
			rules = append(rules, rule(of.Group, of.Resource+"/"+s.Name, may...))
		}
	}
	return rules
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

package main

import (
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	ours "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// account is the name of the operator's service account in kube-system, and of its roles.
func (o operator) account() string { return "coracle-operator-" + o.name }

// rbac returns a service account with exactly the permissions that the operator needs. With namespaces, it may read
// Secrets and ConfigMaps only in those.
func (o operator) rbac(namespaces []string) []client.Object {
	read := []string{"get", "list", "watch"}
	meta, inSystem := metav1.ObjectMeta{Name: o.account()}, metav1.ObjectMeta{
		Name: o.account(), Namespace: metav1.NamespaceSystem,
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: inSystem.Namespace, Name: inSystem.Name}}
	everywhere := append(o.rightsEverywhere(namespaces), // the operator discovers kinds again when these change
		rbacv1.PolicyRule{
			APIGroups: []string{"apiextensions.k8s.io"},
			Resources: []string{"customresourcedefinitions"},
			Verbs:     read,
		},
		rbacv1.PolicyRule{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: read})
	leases := []rbacv1.PolicyRule{
		// RBAC cannot restrict create by name
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{
			APIGroups:     []string{"coordination.k8s.io"},
			Resources:     []string{"leases"},
			ResourceNames: []string{server.LeaseOf(o.Reconcilers)},
			Verbs:         []string{"get", "update"},
		},
	}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: o.account()}
	}
	list := []client.Object{
		&corev1.ServiceAccount{ObjectMeta: inSystem},
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: everywhere},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects},
		&rbacv1.Role{ObjectMeta: inSystem, Rules: leases},
		&rbacv1.RoleBinding{ObjectMeta: inSystem, RoleRef: ref("Role"), Subjects: subjects},
	}
	for _, n := range namespaces {
		there := metav1.ObjectMeta{Name: o.account() + "-sources", Namespace: n}
		to := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: there.Name}
		list = append(list,
			&rbacv1.Role{
				ObjectMeta: there, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: sources, Verbs: read}},
			},
			&rbacv1.RoleBinding{ObjectMeta: there, RoleRef: to, Subjects: subjects})
	}
	return list
}

// sources are the resources that Clusters and Bundles refer to.
var sources = []string{"configmaps", "secrets"}

// rightsEverywhere returns the operator's permissions in all namespaces. They include sources only if namespaces is
// empty.
func (o operator) rightsEverywhere(namespaces []string) []rbacv1.PolicyRule {
	list := o.Rights()
	if len(namespaces) == 0 {
		return list
	}
	for i := range list {
		if slices.Equal(list[i].APIGroups, []string{""}) {
			list[i].Resources = slices.DeleteFunc(list[i].Resources, func(r string) bool { return slices.Contains(sources, r) })
		}
	}
	return slices.DeleteFunc(list, func(r rbacv1.PolicyRule) bool {
		return len(r.Resources) == 0 && len(r.NonResourceURLs) == 0
	})
}

// printRBAC prints the service account and its roles as YAML, with instructions.
func (o operator) printRBAC(out io.Writer, namespaces []string) error {
	if _, err := fmt.Fprintf(out,
		"# The user of `coracle operator %s`. `kubectl create token %s -n %s` makes a token for its kubeconfig.\n%s",
		o.name, o.account(), metav1.NamespaceSystem, o.Advice); err != nil {
		return err
	}
	for _, object := range o.rbac(namespaces) {
		kind, err := apiutil.GVKForObject(object, ours.Scheme())
		if err != nil {
			return err
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		if err := command.PrintManifests(out, object); err != nil {
			return err
		}
	}
	return nil
}

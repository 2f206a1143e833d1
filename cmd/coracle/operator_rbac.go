package main

import (
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	ours "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/server"
)

// account is the name of the operator's service account in kube-system, and of its roles.
func (o operator) account() string { return "coracle-operator-" + o.name }

// rbac returns a service account with the rights that the operator needs, and no others.
func (o operator) rbac() []client.Object {
	read := []string{"get", "list", "watch"}
	meta, inSystem := metav1.ObjectMeta{Name: o.account()}, metav1.ObjectMeta{Name: o.account(), Namespace: metav1.NamespaceSystem}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: inSystem.Namespace, Name: inSystem.Name}}
	everywhere := append(o.rights(), // it discovers kinds again when these change
		rbacv1.PolicyRule{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: read},
		rbacv1.PolicyRule{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: read})
	leases := []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}}, // RBAC does not know the name of what is created
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{server.LeaseOf(o.reconcilers)}, Verbs: []string{"get", "update"}},
	}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: o.account()}
	}
	return []client.Object{
		&corev1.ServiceAccount{ObjectMeta: inSystem},
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: everywhere},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects},
		&rbacv1.Role{ObjectMeta: inSystem, Rules: leases},
		&rbacv1.RoleBinding{ObjectMeta: inSystem, RoleRef: ref("Role"), Subjects: subjects},
	}
}

// printRBAC prints the service account and its roles, and how to use them.
func (o operator) printRBAC(out io.Writer) error {
	if _, err := fmt.Fprintf(out, "# The user of `coracle operator %s`. `kubectl create token %s -n %s` makes a token for its kubeconfig.\n%s",
		o.name, o.account(), metav1.NamespaceSystem, o.advice); err != nil {
		return err
	}
	for _, object := range o.rbac() {
		kind, err := apiutil.GVKForObject(object, ours.Scheme())
		if err != nil {
			return err
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		if err := printManifest(out, object); err != nil {
			return err
		}
	}
	return nil
}

// printManifest prints an object that is to be applied, without the fields that a server sets.
func printManifest(out io.Writer, object client.Object) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	delete(fields, "status")
	delete(fields["metadata"].(map[string]any), "creationTimestamp")
	if text, err = yaml.Marshal(fields); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "---\n%s", text)
	return err
}

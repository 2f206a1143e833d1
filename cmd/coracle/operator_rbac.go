package main

import (
	"fmt"
	"io"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	ours "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// account is the name of the operator's service account in kube-system, and of its roles.
func (o operator) account() string { return "coracle-operator-" + o.Name }

// rbac returns a service account in a namespace with exactly the permissions that the operator needs. With namespaces,
// it may read Secrets and ConfigMaps only in those.
func (o operator) rbac(home string, namespaces []string) []client.Object {
	read := []string{"get", "list", "watch"}
	meta, inSystem := metav1.ObjectMeta{Name: o.account()}, metav1.ObjectMeta{
		Name: o.account(), Namespace: metav1.NamespaceSystem,
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: home, Name: o.account()}}
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
			ResourceNames: []string{server.LeaseOf(o.names())},
			Verbs:         []string{"get", "update"},
		},
	}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: o.account()}
	}
	list := []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: o.account(), Namespace: home}},
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
	var list []rbacv1.PolicyRule
	for _, a := range (systems.List{o.System}).Accounts() {
		list = append(list, a.Rules...)
	}
	list = engine.Merge(list)
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
		o.Name, o.account(), metav1.NamespaceSystem, o.Operator.Advice); err != nil {
		return err
	}
	return printObjects(out, o.rbac(metav1.NamespaceSystem, namespaces))
}

// printManifests prints the operator as a Deployment in a namespace of its own.
func (o operator) printManifests(out io.Writer, image string, namespaces []string) error {
	home := o.Name + "-system"
	meta := metav1.ObjectMeta{Name: o.account(), Namespace: home, Labels: map[string]string{"app": o.account()}}
	one, no, yes, port := int32(1), false, true, intstr.FromInt32(operatorPort)
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: port}}}
	}
	pod := corev1.PodSpec{
		ServiceAccountName: o.account(),
		Containers: []corev1.Container{{
			Name: "operator", Image: image,
			Args:          []string{"operator", o.Name, fmt.Sprintf("--listen=0.0.0.0:%d", operatorPort)},
			Env:           []corev1.EnvVar{{Name: "HOME", Value: "/tmp"}},
			Ports:         []corev1.ContainerPort{{Name: "metrics", ContainerPort: operatorPort}},
			LivenessProbe: probe("/livez"), ReadinessProbe: probe("/readyz"),
			VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: new(int64(65532)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}
	list := append([]client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}}},
		o.rbac(home, namespaces)...)
	return printObjects(out, append(list, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: meta.Labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels}, Spec: pod},
	}}))
}

// operatorPort is the port of an operator's pod for probes and metrics.
const operatorPort = 8080

func printObjects(out io.Writer, list []client.Object) error {
	for _, object := range list {
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

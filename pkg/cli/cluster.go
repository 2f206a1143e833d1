package cli

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis"
	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// Cluster is the cluster used by Coracle's own commands.
type Cluster struct {
	Namespace string
	Client    ctrl.WithWatch
	REST      *rest.Config
	// target connects to a cluster of Kontrol; nil means by REST.
	target func(*rest.Config) (ctrl.Client, error)
}

// Connect reads the kubeconfig as kubectl does. An empty path or namespace means the default.
func Connect(kubeconfig, namespace string) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{}
	overrides.Context.Namespace = namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("there is no cluster to talk to: start one with `coracle start`, or set KUBECONFIG")
	}
	if err != nil {
		return nil, err
	}
	if namespace, _, err = loader.Namespace(); err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	client, err := ctrl.NewWithWatch(config, ctrl.Options{Scheme: scheme, Mapper: newMapper()})
	if err != nil {
		return nil, err
	}
	return &Cluster{Namespace: namespace, Client: client, REST: config}, nil
}

// table prints rows below a header, with columns three spaces apart as kubectl does.
func table(out io.Writer, header string, rows func(line func(cells ...any))) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	fmt.Fprintln(w, header)
	rows(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			if s := fmt.Sprint(c); s != "" {
				fmt.Fprint(w, s)
			} else {
				fmt.Fprint(w, "-")
			}
		}
		fmt.Fprintln(w)
	})
	return w.Flush()
}

// ago formats the time since t like kubectl's AGE; empty if t is zero.
func ago(t *metav1.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// newScheme has the kinds that Coracle's own commands read and write.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	var errs []error
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme, authenticationv1.AddToScheme,
		apis.AddToScheme,
	} {
		errs = append(errs, add(scheme))
	}
	return scheme, errors.Join(errs...)
}

// newMapper has the paths of these kinds. They are known, so no discovery is needed.
func newMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(tasks.GroupVersion.WithKind("Task"), meta.RESTScopeNamespace)
	mapper.Add(tasks.GroupVersion.WithKind("TaskSchedule"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	mapper.Add(workers.GroupVersion.WithKind("Worker"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	mapper.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), meta.RESTScopeRoot)
	mapper.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), meta.RESTScopeRoot)
	for _, kind := range []string{"Cluster", "Resource", "AppliedState", "CurrentState", "Bundle"} {
		mapper.Add(kontrol.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	for _, kind := range []string{"Buildbarn", "BuildbarnScheduler", "BuildbarnWorker", "BuildbarnStorage", "BuildbarnFrontend", "BuildbarnBrowser"} {
		mapper.Add(buildbarn.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	return mapper
}

// Package command holds the code that the systems' command lines share: the flags that select a cluster, the connection
// to it, and tables. A command uses only the cluster's API. Its invariant: a command reads the environment and the
// terminal only through this package.
package command

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis"
)

// Page is the number of objects that a command lists with one request.
const Page = 500

// Cluster is a connection to the cluster of a command.
type Cluster struct {
	Namespace string
	Client    ctrl.WithWatch
	REST      *rest.Config
}

// Connector connects to clusters.
type Connector struct {
	// Kinds are Coracle's kinds that the command reads and writes. Mapper adds the Kubernetes kinds, so a connection
	// needs no discovery.
	Kinds []metav1.APIResource
}

// ErrNoCluster means that neither this machine nor a kubeconfig names a cluster.
var ErrNoCluster = errors.New("there is no cluster to talk to: start one with `coracle start`, or set KUBECONFIG")

// NoCluster returns ErrNoCluster. If KUBECONFIG is set it says so, since this machine's cluster is not used then. If
// this machine has a cluster that the user may not use, it says that instead.
func NoCluster() error {
	own := filepath.Join(DataDir(), Kubeconfig)
	if f, err := os.Open(own); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("only root may read %s, the kubeconfig of this machine's cluster: use sudo, or copy the file to "+
			"~/.kube/config", own)
	} else if err == nil {
		_ = f.Close()
	}
	if files := os.Getenv("KUBECONFIG"); files != "" {
		return fmt.Errorf("%w; KUBECONFIG=%s names none: unset it to use the cluster of this machine", ErrNoCluster, files)
	}
	return ErrNoCluster
}

// errStopped means that nothing listens at the address in this machine's kubeconfig.
var errStopped = errors.New("coracle is not running here: start it with `coracle start`")

// dialTimeout bounds the connection attempt of Check.
const dialTimeout = time.Second

// Check returns an error with a remedy if config leads nowhere: if it is client-go's default because no cluster is
// configured, or if it leads to this machine's cluster and nothing listens there.
func Check(config *rest.Config) error {
	if config.Host == clientcmd.ClusterDefaults.Server {
		if all, err := clientcmd.NewDefaultClientConfigLoadingRules().Load(); err == nil && len(all.Clusters) == 0 {
			return NoCluster()
		}
	}
	own, err := clientcmd.BuildConfigFromFlags("", filepath.Join(DataDir(), Kubeconfig))
	if err != nil || own.Host != config.Host {
		return nil
	}
	server, err := url.Parse(own.Host)
	if err != nil {
		return nil
	}
	conn, err := net.DialTimeout("tcp", server.Host, dialTimeout)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errStopped
	}
	if err == nil {
		_ = conn.Close()
	}
	return nil
}

// Connect reads the kubeconfig as kubectl does. An empty path or namespace means the default, which is the cluster of
// this machine unless KUBECONFIG names another.
func (c Connector) Connect(kubeconfig, namespace string) (*Cluster, error) {
	UseCluster(DataDir())
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{}
	overrides.Context.Namespace = namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, NoCluster()
	}
	if err == nil {
		err = Check(config)
	}
	if err != nil {
		return nil, err
	}
	if namespace, _, err = loader.Namespace(); err != nil {
		return nil, err
	}
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	client, err := ctrl.NewWithWatch(config, ctrl.Options{Scheme: scheme, Mapper: c.Mapper()})
	if err != nil {
		return nil, err
	}
	return &Cluster{Namespace: namespace, Client: client, REST: config}, nil
}

// Ago formats the time since t like kubectl's AGE; empty if t is zero.
func Ago(t *metav1.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// Scheme returns a scheme with the kinds that Coracle's own commands read and write.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	var errs []error
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme, authenticationv1.AddToScheme,
		apis.AddToScheme,
	} {
		errs = append(errs, add(scheme))
	}
	return scheme, errors.Join(errs...)
}

// Mapper returns the resources and scopes of the kinds that commands read and write.
func (c Connector) Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	core := corev1.SchemeGroupVersion
	for _, kind := range []string{"Event", "Service", "Pod", "Secret", "ServiceAccount"} {
		mapper.Add(core.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"Deployment", "StatefulSet", "ReplicaSet"} {
		mapper.Add(appsv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(core.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(core.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	mapper.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), meta.RESTScopeRoot)
	mapper.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), meta.RESTScopeRoot)
	for _, k := range c.Kinds {
		scope := meta.RESTScopeRoot
		if k.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		mapper.Add(schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}, scope)
	}
	return mapper
}

package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typednodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	"k8s.io/client-go/openapi"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// cacheReads implements the part of a clientset that plugins use for live reads. It reads the informers' cache.
// Other calls panic.
type cacheReads struct {
	kubernetes.Interface
	client  client.Interface
	openapi openapi.Client
}

func (c cacheReads) CoreV1() typedcorev1.CoreV1Interface { return coreReads{client: c.client} }

func (c cacheReads) NodeV1() typednodev1.NodeV1Interface { return nodeReads{client: c.client} }

type nodeReads struct {
	typednodev1.NodeV1Interface
	client client.Interface
}

func (n nodeReads) RuntimeClasses() typednodev1.RuntimeClassInterface {
	return runtimeClassReads{client: n.client}
}

type runtimeClassReads struct {
	typednodev1.RuntimeClassInterface
	client client.Interface
}

func (r runtimeClassReads) Get(ctx context.Context, name string, _ metav1.GetOptions) (*nodev1.RuntimeClass, error) {
	out := &nodev1.RuntimeClass{}
	return out, r.client.Get(ctx, ctrl.ObjectKey{Name: name}, out)
}

type coreReads struct {
	typedcorev1.CoreV1Interface
	client client.Interface
}

func (c coreReads) Namespaces() typedcorev1.NamespaceInterface {
	return namespaceReads{client: c.client}
}

func (c coreReads) ServiceAccounts(namespace string) typedcorev1.ServiceAccountInterface {
	return accountReads{client: c.client, namespace: namespace}
}

func (c coreReads) LimitRanges(namespace string) typedcorev1.LimitRangeInterface {
	return limitReads{client: c.client, namespace: namespace}
}

type namespaceReads struct {
	typedcorev1.NamespaceInterface
	client client.Interface
}

func (n namespaceReads) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	out := &corev1.Namespace{}
	return out, n.client.Get(ctx, ctrl.ObjectKey{Name: name}, out)
}

type accountReads struct {
	typedcorev1.ServiceAccountInterface
	client    client.Interface
	namespace string
}

func (a accountReads) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.ServiceAccount, error) {
	out := &corev1.ServiceAccount{}
	return out, a.client.Get(ctx, ctrl.ObjectKey{Namespace: a.namespace, Name: name}, out)
}

type limitReads struct {
	typedcorev1.LimitRangeInterface
	client    client.Interface
	namespace string
}

func (l limitReads) List(ctx context.Context, _ metav1.ListOptions) (*corev1.LimitRangeList, error) {
	out := &corev1.LimitRangeList{}
	return out, l.client.List(ctx, out, ctrl.InNamespace(l.namespace))
}

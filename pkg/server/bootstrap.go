package server

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/dns"
)

// bootstrap is a component that writes what every cluster has: the four namespaces, the services of the API itself and of
// DNS, and the priority classes. It writes only what is missing or was changed, and is ready when that is done.
type bootstrap struct {
	client client.Interface
	// api is the address and port at which nodes and pods reach the API, service the first address of the service range.
	api     netip.AddrPort
	service netip.Addr
	ready   chan struct{}
}

func (b *bootstrap) Name() string           { return "bootstrap" }
func (b *bootstrap) Ready() <-chan struct{} { return b.ready }

func (b *bootstrap) Run(ctx context.Context) error {
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		if err := b.make(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	for _, f := range []func(context.Context) error{b.priorities, b.apiService, b.apiSlice, b.apiEndpoints, b.dnsService, b.nodeServices} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	close(b.ready)
	<-ctx.Done()
	return nil
}

// make creates the object unless it is there.
func (b *bootstrap) make(ctx context.Context, o ctrl.Object) error {
	// A creation would be refused for its address before it is refused for its name.
	err := b.client.Get(ctx, ctrl.ObjectKeyFromObject(o), o.DeepCopyObject().(ctrl.Object))
	if apierrors.IsNotFound(err) {
		err = b.client.Create(ctx, o)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%T %s: %w", o, o.GetName(), err)
	}
	return nil
}

func (b *bootstrap) priorities(ctx context.Context) error {
	for _, class := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical"}, Value: 2_000_000_000,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."},
		{ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2_000_001_000,
			Description: "Used for system critical pods that must not be moved from their current node."},
	} {
		if err := b.make(ctx, &class); err != nil {
			return err
		}
	}
	return nil
}

func apiMeta(slice bool) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
	if slice {
		m.Labels = map[string]string{discoveryv1.LabelServiceName: m.Name}
	}
	return m
}

// nodeServices lets nodes see services, their endpoints and each other, as upstream lets kube-proxy, which is a part of a node here.
func (b *bootstrap) nodeServices(ctx context.Context) error {
	return b.make(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "coracle:node-proxier"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: nodesGroup}},
	})
}

// dnsService is asked by pods, and answered by the node that each of them is on.
func (b *bootstrap) dnsService(ctx context.Context) error {
	return b.make(ctx, dns.Service(dnsAddress(b.service).String()))
}

// dnsAddress is the tenth address of a service range whose first one is given, as is the custom.
func dnsAddress(first netip.Addr) netip.Addr {
	for range 9 {
		first = first.Next()
	}
	return first
}

// apiService is reached by pods at the service range's first address, as KUBERNETES_SERVICE_HOST tells them.
func (b *bootstrap) apiService(ctx context.Context) error {
	want := &corev1.Service{ObjectMeta: apiMeta(false)}
	want.Labels = map[string]string{"component": "apiserver", "provider": "kubernetes"}
	want.Spec = corev1.ServiceSpec{
		ClusterIP: b.service.String(),
		Ports:     []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(b.api.Port()))}},
	}
	if err := b.make(ctx, want); err != nil {
		return err
	}
	var have corev1.Service
	if err := b.client.Get(ctx, ctrl.ObjectKeyFromObject(want), &have); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports) {
		return nil
	}
	next := have.DeepCopy()
	next.Spec.Ports = want.Spec.Ports
	return b.client.Update(ctx, next)
}

func (b *bootstrap) apiSlice(ctx context.Context) error {
	name, port, protocol, ready := "https", int32(b.api.Port()), corev1.ProtocolTCP, true
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: apiMeta(true), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{b.api.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	if err := b.make(ctx, want); err != nil {
		return err
	}
	var have discoveryv1.EndpointSlice
	if err := b.client.Get(ctx, ctrl.ObjectKeyFromObject(want), &have); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		return nil
	}
	next := have.DeepCopy()
	next.Endpoints, next.Ports = want.Endpoints, want.Ports
	return b.client.Update(ctx, next)
}

func (b *bootstrap) apiEndpoints(ctx context.Context) error {
	//nolint:staticcheck // Endpoints is deprecated, and old clients of the API's own address still read it.
	want := &corev1.Endpoints{ObjectMeta: apiMeta(false), Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: b.api.Addr().String()}},
		Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(b.api.Port()), Protocol: corev1.ProtocolTCP}},
	}}}
	want.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
	if err := b.make(ctx, want); err != nil {
		return err
	}
	var have corev1.Endpoints //nolint:staticcheck // as above
	if err := b.client.Get(ctx, ctrl.ObjectKeyFromObject(want), &have); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(have.Subsets, want.Subsets) {
		return nil
	}
	next := have.DeepCopy()
	next.Subsets = want.Subsets
	return b.client.Update(ctx, next)
}

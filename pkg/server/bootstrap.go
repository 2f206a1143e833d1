package server

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers/allocations"
	keep "github.com/coracle-dev/coracle/pkg/control/controllers/bootstrap"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/node/dns"
)

// bootstrap is the component that creates and restores the objects that every cluster has, among them the
// namespaces, the priority classes and the Services of the API and of DNS. It is ready when they exist, or when the
// first attempt to write them has failed.
type bootstrap struct {
	client client.Interface
	// api is the API's address for nodes and pods; service is the first address of services.
	api      netip.AddrPort
	service  netip.Addr
	services netip.Prefix
	// servers lists the servers that serve the API.
	servers *serverList
	// repair reserves the addresses and ports of existing Services; see registry.RepairAllocations.
	repair func(context.Context) error
	log    *slog.Logger
	run.Readiness
}

func (b *bootstrap) Name() string { return "bootstrap" }
func (b *bootstrap) Run(ctx context.Context) error {
	// Repair before the first allocation: a version that made no reservations may have written the store.
	if err := b.repair(ctx); err != nil && ctx.Err() == nil {
		b.log.Error("could not repair the allocations of services", "error", err)
	}
	objects, _, err := b.wanted(ctx)
	if err == nil {
		err = keep.Ensure(ctx, b.client, objects)
	}
	if err != nil && ctx.Err() == nil {
		// Do not fail: an administrator can repair a running server through its API. The reconciler retries.
		b.log.Error("could not write bootstrap objects", "error", err)
	}
	b.SetReady()
	return engine.Run(ctx, engine.Config{
		ClientFor: func(string) client.Interface { return b.client }, Log: b.log,
	}, []*engine.Reconciler{keep.New(b.objects([]netip.Addr{b.api.Addr()}), b.wanted), allocations.New(b.repair)},
		func() {})
}

// wanted returns the objects that must exist, and after how long to check again; 0 means never. It renews this
// server's lease.
func (b *bootstrap) wanted(ctx context.Context) ([]ctrl.Object, time.Duration, error) {
	servers, next, err := b.servers.renew(ctx, b.published(ctx))
	if err != nil {
		return nil, 0, err
	}
	return b.objects(servers), next, nil
}

func (b *bootstrap) publish(ctx context.Context) error {
	servers, _, err := b.servers.renew(ctx, b.published(ctx))
	if err != nil || len(servers) == 0 {
		return err
	}
	return keep.Ensure(ctx, b.client, []ctrl.Object{b.apiSlice(servers), b.apiEndpoints(servers)})
}

func (b *bootstrap) published(ctx context.Context) (servers []netip.Addr) {
	var slice discoveryv1.EndpointSlice
	if err := b.client.Get(ctx, ctrl.ObjectKey{
		Namespace: metav1.NamespaceDefault, Name: apiMeta(true).Name,
	}, &slice); err != nil {
		return nil
	}
	for _, e := range slice.Endpoints {
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				servers = append(servers, a)
			}
		}
	}
	return servers
}

// objects returns the objects that every cluster has, in the order of their creation. Without servers, it omits the
// API's endpoints.
func (b *bootstrap) objects(servers []netip.Addr) []ctrl.Object {
	var list []ctrl.Object
	for _, name := range []string{
		metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease,
	} {
		list = append(list, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if len(servers) > 0 {
		list = append(list, b.apiSlice(servers), b.apiEndpoints(servers))
	}
	return append(list,
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical"}, Value: 2_000_000_000,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if " +
				"necessary."},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2_000_001_000,
			Description: "Used for system critical pods that must not be moved from their current node."},
		&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{b.services.String()}},
		},
		b.apiService(),
		// The node's own DNS server answers the queries that pods send to this Service.
		dns.Service(dnsAddress(b.service).String()),
		nodeServices(),
		localStorage(), localSnapshotClass())
}

func apiMeta(slice bool) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
	if slice {
		m.Labels = map[string]string{discoveryv1.LabelServiceName: m.Name}
	}
	return m
}

// nodeServices lets nodes read Services, EndpointSlices and Nodes. Upstream grants this to kube-proxy, which is
// part of the agent here.
func nodeServices() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "coracle:node-proxier"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: nodesGroup}},
	}
}

// localStorage returns the default StorageClass. Its volumes are directories on the node of the first pod that uses
// them.
func localStorage() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: storage.DefaultClass, Annotations: map[string]string{storage.DefaultAnnotation: "true"},
		},
		Provisioner:          storage.Provisioner,
		VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
		ReclaimPolicy:        new(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: new(true),
	}
}

func localSnapshotClass() *snapshots.VolumeSnapshotClass {
	return &snapshots.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: storage.DefaultClass, Annotations: map[string]string{snapshots.DefaultAnnotation: "true"},
		},
		Driver: storage.Provisioner, DeletionPolicy: snapshots.Delete,
	}
}

// dnsAddress returns the tenth address of a service range, the conventional address of cluster DNS. first is its
// first address.
func dnsAddress(first netip.Addr) netip.Addr {
	for range 9 {
		first = first.Next()
	}
	return first
}

// apiService returns the API's Service. Pods get its address as KUBERNETES_SERVICE_HOST.
func (b *bootstrap) apiService() *corev1.Service {
	s := &corev1.Service{ObjectMeta: apiMeta(false)}
	s.Labels = map[string]string{"component": "apiserver", "provider": "kubernetes"}
	s.Spec = corev1.ServiceSpec{
		ClusterIP: b.service.String(),
		Ports: []corev1.ServicePort{
			{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(b.api.Port()))},
		},
	}
	return s
}

func (b *bootstrap) apiSlice(servers []netip.Addr) *discoveryv1.EndpointSlice {
	name, port, protocol, ready := "https", int32(b.api.Port()), corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: apiMeta(true), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, a := range servers {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

//nolint:staticcheck // Endpoints is deprecated, and old clients of the API's own address still read it.
func (b *bootstrap) apiEndpoints(servers []netip.Addr) *corev1.Endpoints {
	subset := corev1.EndpointSubset{
		Ports: []corev1.EndpointPort{{Name: "https", Port: int32(b.api.Port()), Protocol: corev1.ProtocolTCP}},
	}
	for _, a := range servers {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: a.String()})
	}
	e := &corev1.Endpoints{ObjectMeta: apiMeta(false), Subsets: []corev1.EndpointSubset{subset}}
	e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
	return e
}

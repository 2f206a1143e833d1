package ingress

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// crowd is a cluster with one service, and its slices.
type crowd struct {
	ctrlcache.Cache
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
}

func (c crowd) Get(_ context.Context, _ ctrl.ObjectKey, o ctrl.Object, _ ...ctrl.GetOption) error {
	*o.(*corev1.Service) = *c.service
	return nil
}

func (c crowd) List(_ context.Context, o ctrl.ObjectList, _ ...ctrl.ListOption) error {
	o.(*discoveryv1.EndpointSliceList).Items = c.slices
	return nil
}

type crowded struct {
	client.Interface
	cache crowd
}

func (c crowded) Cache() ctrlcache.Cache { return c.cache }

// TestCostOfOneIngress measures the table for an Ingress whose 2,000 paths lead to the 2,000 ports of a service with
// 100,000 endpoints.
func TestCostOfOneIngress(t *testing.T) {
	const ports = 2000
	c := crowd{service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}}
	var named []discoveryv1.EndpointPort
	in := ingressOf("i", 0)
	rule := &networkingv1.HTTPIngressRuleValue{}
	for p := range ports {
		c.service.Spec.Ports = append(c.service.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprint("p", p), Port: int32(p + 1), Protocol: corev1.ProtocolTCP})
		named = append(named, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint("p", p)), Port: ptr.To(int32(p + 1))})
		rule.Paths = append(rule.Paths, networkingv1.HTTPIngressPath{
			Path: fmt.Sprint("/", p), PathType: ptr.To(networkingv1.PathTypePrefix),
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: "s", Port: networkingv1.ServiceBackendPort{Number: int32(p + 1)}}}})
	}
	in.Spec.Rules = []networkingv1.IngressRule{{Host: "a", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: rule}}}
	for s := range 100 {
		one := discoveryv1.EndpointSlice{Ports: named}
		one.Labels = map[string]string{discoveryv1.LabelServiceName: "s"}
		for e := range 1000 {
			one.Endpoints = append(one.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", s, e/250, 1+e%250)}})
		}
		c.slices = append(c.slices, one)
	}
	i := &Ingress{Config: Config{Client: crowded{cache: c}}}
	before := used()
	table := i.build(t.Context(), []*networkingv1.Ingress{in})
	for range 1000 {
		require.NotNil(t, table.route("a", "/1999/x"))
	}
	took := used() - before
	t.Log(took)
	require.Less(t, took, time.Second)
	require.Len(t, table.route("a", "/0").backend.endpoints, 100*1000)
	require.Contains(t, table.route("a", "/1999").backend.why, "too many endpoints")
}

// used returns the processor time of the process.
func used() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

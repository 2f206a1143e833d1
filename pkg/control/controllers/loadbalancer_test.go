package controllers_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestLoadBalancerAddresses: Services get addresses with the rights of upstream's service controller. A waiting
// Service gets the address of a deleted one. A Service whose type changes loses its address.
func TestLoadBalancerAddresses(t *testing.T) {
	one := netip.MustParseAddr("192.0.2.1")
	c := start(t, controlplane.Options{
		HTTP: true, Balance: &loadbalancer.Config{Pool: []config.AddressRange{{First: one, Last: one}}},
	})
	service := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	is := func(s *corev1.Service, text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			if err := c.Get(c.Ctx, ctrl.ObjectKeyFromObject(s), s); err != nil {
				return text == "gone"
			}
			got := ""
			for _, i := range s.Status.LoadBalancer.Ingress {
				got = i.IP
			}
			for _, condition := range s.Status.Conditions {
				got += condition.Message
			}
			return got == text && (text == "") == (len(s.Finalizers) == 0)
		}, time.Minute, 5*time.Millisecond, "%s is not %q: %v", s.Name, text, s)
	}
	first, second := service("first"), service("second")
	require.NoError(t, c.Create(c.Ctx, first))
	is(first, one.String())
	require.NoError(t, c.Create(c.Ctx, second))
	is(second, "the pool has no free address")
	require.NoError(t, c.Delete(c.Ctx, first))
	is(first, "gone")
	is(second, one.String())
	patch := []byte(`{"spec":{"type":"ClusterIP"}}`)
	require.NoError(t, c.Patch(c.Ctx, second, ctrl.RawPatch("application/merge-patch+json", patch)))
	is(second, "")
}

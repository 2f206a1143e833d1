package ingress

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// TestClassesComeAndGo checks that Ingresses are no longer served if their class is deleted or gets another
// controller.
func TestClassesComeAndGo(t *testing.T) {
	i := &Ingress{classes: map[string]bool{}, wake: make(chan struct{}, 1)}
	name := "other"
	o := &networkingv1.Ingress{Spec: networkingv1.IngressSpec{IngressClassName: &name}}
	class := func(controller string) *networkingv1.IngressClass {
		return &networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: controller},
		}
	}
	ours, theirs := class(Controller), class("example.com/nginx")
	i.seeClass(nil, ours)
	require.True(t, i.isOurs(o))
	i.seeClass(ours, nil)
	require.False(t, i.isOurs(o))
	i.seeClass(nil, ours)
	i.seeClass(ours, theirs)
	require.False(t, i.isOurs(o))
	require.Empty(t, i.classes)
}

// TestSyncsArePaced checks that changes without end take a part of the time only, and that a single one does not wait.
func TestSyncsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wake := make(chan struct{}, 1)
		var at []time.Duration
		began, storm := time.Now(), true
		paced(ctx, wake, func() <-chan time.Time {
			at = append(at, time.Since(began))
			if storm {
				wake <- struct{}{} // a change while sync runs
			}
			time.Sleep(100 * time.Millisecond)
			if storm = time.Since(began) < 5*time.Second; !storm && len(at) == 12 {
				return time.After(3 * time.Second)
			}
			return nil
		})
		require.Equal(t, []time.Duration{0, 500 * time.Millisecond, time.Second}, at[:3])
		require.Len(t, at, 13)
		require.Equal(t, 3100*time.Millisecond, at[12]-at[11], "after an idle time at once")
	})
}

// listing is a client whose cache has services and nothing else.
type listing struct {
	client.Interface
	services []corev1.Service
}

type listed struct {
	ctrlcache.Cache
	services []corev1.Service
}

func (l listing) Cache() ctrlcache.Cache { return listed{services: l.services} }

func (l listed) List(_ context.Context, into ctrl.ObjectList, _ ...ctrl.ListOption) error {
	if s, ok := into.(*corev1.ServiceList); ok {
		s.Items = l.services
	}
	return nil
}

// TestServicesThatTakeOurPorts checks that the services whose external addresses are ours are named, but not thousands
// of them: each is a problem of every Ingress.
func TestServicesThatTakeOurPorts(t *testing.T) {
	i := &Ingress{Config: Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, HTTPPort: 80}}
	service := corev1.Service{Spec: corev1.ServiceSpec{
		ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	service.Namespace, service.Name = "evil", "s"
	i.Client = listing{services: []corev1.Service{service}}
	require.Equal(t, []string{"port 80 of 192.0.2.1 belongs to service evil/s"}, i.shadowed(t.Context()))
	i.Client = listing{services: slices.Repeat([]corev1.Service{service}, 10_000)}
	require.Len(t, i.shadowed(t.Context()), maxProblems)
}

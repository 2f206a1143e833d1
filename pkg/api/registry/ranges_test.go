package registry

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestARangeThatIsNotReady(t *testing.T) {
	h := build(t)
	ranges := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	put(h, at(ranges, "", ""), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.43.0.0/16"}},
	})
	status := at(ranges, "", "kubernetes")
	status.Subresource = "status"
	set := func(ready string) {
		_, err := h.Patch(h.ctx, status, types.MergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"`+ready+
				`","reason":"x","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	set("False")
	_, err := h.createService(service("a", corev1.ServiceTypeClusterIP))
	requireStatus(t, err, 500, "range is full")
	named := service("a", corev1.ServiceTypeClusterIP)
	named.Spec.ClusterIP = "10.43.0.9"
	_, err = h.createService(copied(named))
	requireStatus(t, err, 422, "the provided network does not match the current range")
	headless := service("h", corev1.ServiceTypeClusterIP)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	put(h, v1("Service", ""), headless)
	set("True")
	put(h, v1("Service", ""), named)
}

func TestFurtherRanges(t *testing.T) {
	h, _ := build(t).another(small)
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	add := func(name, cidr string) {
		put(h, at(kind, "", ""), &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/stays"}},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
		})
	}
	fill := func(from, n int) {
		for i := range n {
			_, err := h.createService(service(fmt.Sprint("s", from+i), corev1.ServiceTypeClusterIP))
			require.NoError(t, err)
		}
		_, err := h.createService(service("more", corev1.ServiceTypeClusterIP))
		requireStatus(t, err, 500, "range is full")
	}
	fill(0, 13)
	add("few", "10.99.0.0/30")
	fill(13, 2)
	add("more", "10.99.0.0/29")
	fill(15, 4) // Services already have the addresses of "few"
	for ip, why := range map[string]string{
		"10.99.0.7": "the provided IP (10.99.0.7) is not in the valid range. The range of valid IPs is 10.99.0.0/29",
		"10.99.0.2": "provided IP is already allocated",
		"10.99.0.9": "the provided network does not match the current range",
	} {
		s := service("asked", corev1.ServiceTypeClusterIP)
		s.Spec.ClusterIP = ip
		_, err := h.createService(s)
		requireStatus(t, err, 422, why)
	}

	_, err := h.Delete(h.ctx, at(kind, "", "more"), metav1.DeleteOptions{})
	require.NoError(t, err)
	for i := range 19 {
		_, err := h.Delete(h.ctx, v1("Service", fmt.Sprint("s", i)), metav1.DeleteOptions{})
		require.NoError(t, err)
	}
	reserved, _ := h.reserved()
	require.Empty(t, reserved, "also of a range that goes")
	fill(0, 15) // a range that is being deleted has no addresses to allocate
}

// TestARangeThatGoesMeanwhile: a server that is behind allocates no address, requested or not, from a range that
// another server has deleted.
func TestARangeThatGoesMeanwhile(t *testing.T) {
	first := build(t)
	a, _ := first.another(small)
	b, gate := first.another(small)
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	put(a, at(kind, "", ""), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/28"}},
	})
	for i := range 13 {
		_, err := a.createService(service(fmt.Sprint("s", i), corev1.ServiceTypeClusterIP))
		require.NoError(t, err)
	}
	_, err := b.sync(b.ctx)
	require.NoError(t, err)
	gate.mu.Lock()
	_, err = a.Delete(a.ctx, at(kind, "", "more"), metav1.DeleteOptions{})
	require.NoError(t, err)
	ended := make(chan error)
	asked := service("asked", corev1.ServiceTypeClusterIP)
	asked.Spec.ClusterIP = "10.99.0.5"
	for _, s := range []*corev1.Service{service("any", corev1.ServiceTypeClusterIP), asked} {
		go func() {
			_, err := b.createService(s)
			ended <- err
		}()
	}
	select {
	case err = <-ended:
		t.Fatalf("the range is gone: %v", err)
	case <-time.After(100 * time.Millisecond): // both wait for the cache
	}
	gate.mu.Unlock()
	for range 2 {
		err := <-ended
		require.Error(t, err)
		if !strings.Contains(err.Error(), "range is full") {
			requireStatus(t, err, 422, "the provided network does not match the current range")
		}
	}
	reserved, users := b.reserved()
	require.Equal(t, users, reserved)
	require.Len(t, reserved, 13)
}

func TestRangesThatAreRefused(t *testing.T) {
	cfg := small
	cfg.ClusterCIDR = netip.MustParsePrefix("10.42.0.0/16")
	h, _ := build(t).another(cfg)
	put(h, at(corev1.SchemeGroupVersion.WithKind("Node"), "", ""), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.7.9"}}}})
	for cidr, why := range map[string]string{
		"fd00::/108":     "must be an IPv4 range",
		"10.0.0.0/7":     "must be a range of /8 to /30",
		"10.9.0.0/31":    "must be a range of /8 to /30",
		"10.42.7.0/24":   "overlaps the range of pods, 10.42.0.0/16",
		"127.0.0.0/16":   "overlaps 127.0.0.0/8",
		"169.0.0.0/8":    "overlaps 169.254.0.0/16",
		"240.0.0.0/24":   "overlaps 224.0.0.0/3",
		"192.168.0.0/16": "contains 192.168.7.9, the address of node n1",
		"10.9.0.5/24":    "10.9.0.5/24",
		"everything":     "everything",
	} {
		_, err := h.Create(h.ctx, at(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), "", ""),
			&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "x"},
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}, metav1.CreateOptions{})
		requireStatus(t, err, 422, why)
	}
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	put(h, at(kind, "", ""), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/28"}},
	})
	change := func(patch string) error {
		_, err := h.Patch(h.ctx, at(kind, "", "x"), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	requireStatus(t, change(`{"spec":{"cidrs":["10.99.0.0/28","fd00::/108"]}}`), 422, "spec.cidrs[1]",
		"must be an IPv4 range")
	require.NoError(t, change(`{"metadata":{"labels":{"a":"b"}}}`))
}

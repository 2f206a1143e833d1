package admission

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

func nodeWith(proven ...string) context.Context {
	return request.WithUser(context.Background(), &user.DefaultInfo{
		Name: "system:node:n", Groups: []string{"system:nodes"}, Extra: map[string][]string{pki.AddressesExtra: proven},
	})
}

func internal(ips ...string) (s corev1.NodeStatus) {
	for _, ip := range ips {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return s
}

// TestNodesHaveOnlyProvenAddresses: with the address of another machine, a node would get that machine's traffic.
func TestNodesHaveOnlyProvenAddresses(t *testing.T) {
	h := secured(t, Plugins{})
	victim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "victim"}, Status: internal("192.0.2.1")}
	victim.Spec.PodCIDR, victim.Spec.PodCIDRs = "10.42.0.0/24", []string{"10.42.0.0/24"}
	victim.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	put(h, v1("Node", ""), victim)
	const unproven = "neither joined with this address nor connects from it"

	own := nodeWith("192.0.2.7", "203.0.113.7", "192.0.2.1", "10.42.0.9", "127.0.0.1")
	create := func(s corev1.NodeStatus) error {
		_, err := h.Create(own, v1("Node", ""), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: s},
			metav1.CreateOptions{})
		return err
	}
	requireStatus(t, create(internal("198.51.100.1")), 403, unproven)
	requireStatus(t, create(internal("192.0.2.1")), 403, "is the address of node victim")
	require.NoError(t, create(internal("192.0.2.7")))

	write := func(ctx context.Context, s corev1.NodeStatus) error {
		n := copied(answer[*corev1.Node](t, readAt(h, v1("Node", "n")), nil))
		n.Status.Addresses = s.Addresses
		_, err := h.Update(ctx, sub(v1("Node", "n"), "status"), n, metav1.UpdateOptions{})
		return err
	}
	require.NoError(t, write(own, internal("192.0.2.7", "203.0.113.7")), "it has moved")
	for ip, why := range map[string]string{
		"198.51.100.1": unproven, "::ffff:198.51.100.1": unproven, "127.0.0.1": unproven, "10.43.0.1": unproven,
		"192.0.2.1": "is the address of node victim", "10.42.0.9": "in the pod range of node victim",
		"example.com": "is not an IP address",
	} {
		requireStatus(t, write(own, internal("192.0.2.7", ip)), 403, why)
		if why == "is not an IP address" {
			continue
		}
		for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeHostName} {
			requireStatus(t, write(own, corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: kind, Address: ip}}}), 403, why)
		}
	}
	require.NoError(t, write(h.ctx, internal("192.0.2.7", "198.51.100.1")), "an administrator may add an address")
	require.NoError(t, write(own, internal("192.0.2.7", "198.51.100.1")), "which the node keeps")
	requireStatus(t, write(nodeWith(), internal("192.0.2.8")), 403, unproven)

	victim = copied(answer[*corev1.Node](t, readAt(h, v1("Node", "victim")), nil))
	victim.Status.Conditions[0].Status = corev1.ConditionUnknown
	_, err := h.Update(h.ctx, sub(v1("Node", "victim"), "status"), victim, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, write(own, internal("192.0.2.1")), "a machine may have the address of one that is gone")

	off := secured(t, Plugins{Disable: []string{nodeAddressesName}})
	_, err = off.Create(nodeWith(), v1("Node", ""), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: internal("198.51.100.1"),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// TestPodsHaveAddressesOfTheirNode: endpoints follow the addresses in a pod's status, which its node writes.
func TestPodsHaveAddressesOfTheirNode(t *testing.T) {
	h := secured(t, Plugins{})
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: internal("192.0.2.7")}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.42.7.0/24", []string{"10.42.7.0/24"}
	put(h, v1("Node", ""), n)
	inside, host := smallPod("inside"), smallPod("host")
	host.Spec.HostNetwork = true
	for _, p := range []*corev1.Pod{inside, host} {
		p.Spec.NodeName = "n"
		put(h, v1("Pod", ""), p)
	}
	write := func(ctx context.Context, name, ip string) error {
		p := copied(answer[*corev1.Pod](t, readAt(h, v1("Pod", name)), nil))
		p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		_, err := h.Update(ctx, sub(v1("Pod", name), "status"), p, metav1.UpdateOptions{})
		return err
	}
	own := nodeWith("192.0.2.7", "203.0.113.7")
	require.NoError(t, write(own, "inside", "10.42.7.5"))
	requireStatus(t, write(own, "inside", "10.42.0.5"), 403, "podIP 10.42.0.5 is in none of the podCIDRs of node n")
	requireStatus(t, write(own, "inside", "192.0.2.7"), 403, "is in none of the podCIDRs")
	require.NoError(t, write(own, "host", "192.0.2.7"))
	require.NoError(t, write(own, "host", "203.0.113.7"), "the Node's status does not have it yet")
	requireStatus(t, write(own, "host", "192.0.2.1"), 403, "in the host's network is no address of node n")
	require.NoError(t, write(h.ctx, "inside", "10.99.0.5"))
	require.NoError(t, write(own, "inside", "10.99.0.5"), "it did not choose this address")
}

package proxy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/test/netns"
)

func TestAffinity(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	w.pod("client")
	w.pod("other")
	w.objects.deliver(nil,
		service("web", "10.43.0.10", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	all := []string{a.String() + "@n1", b.String() + "@n1", c.String() + "@n1"}
	w.objects.deliver(nil, slice("web", 8080, all...))
	w.start()
	sticky := func(where string) string {
		t.Helper()
		first, err := w.ask(where, "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		for range 6 {
			answer, err := w.ask(where, "tcp", "10.43.0.10:80")
			require.NoError(t, err)
			require.Equal(t, first, answer)
		}
		pod, _, _ := strings.Cut(first, " ")
		return pod
	}
	first := sticky("client")
	require.NotEqual(t, first, sticky("other"), "clients are spread")
	// If the endpoint is removed, the client gets another, and keeps it when the first returns.
	index := slices.Index([]string{"a", "b", "c"}, first)
	w.objects.deliver(slice("web", 8080, all...), slice("web", 8080, slices.Delete(slices.Clone(all), index, index+1)...))
	w.settle()
	second := sticky("client")
	require.NotEqual(t, first, second)
	w.objects.deliver(nil, slice("web", 8080, all...))
	w.settle()
	require.Equal(t, second, sticky("client"))
	w.stop()
	w.start()
	require.Equal(t, second, sticky("client"), "a restart changes nothing for clients")
	require.Contains(t, netns.Listing(t), "map clients-16384-default/web/TCP/80 {")
	w.objects.deliver(nil, service("web", "10.43.0.10", func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81, Protocol: corev1.ProtocolTCP})
	}))
	w.settle()
	sticky("client")
	require.Contains(t, netns.Listing(t), "map clients-8192-default/web/TCP/80 {")
	require.NotContains(t, netns.Listing(t), "clients-16384")
	w.stop()
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.start()
	require.NotContains(t, netns.Listing(t), "clients-")
}

// TestAffinityByAllFrontends checks that a client gets the same endpoint through each address of the service.
func TestAffinityByAllFrontends(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	w.pod("client")
	w.objects.deliver(nil, service("web", "10.43.0.10", external("198.51.100.1"), func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1", b.String()+"@n1", c.String()+"@n1"))
	w.start()
	for _, where := range []string{"client", "outside", ""} {
		first := ""
		for _, to := range []string{"10.43.0.10:80", nodeAddr.String() + ":30080", "198.51.100.1:80", "10.43.0.10:80"} {
			answer, err := w.ask(where, "tcp", to)
			require.NoError(t, err)
			pod, _, _ := strings.Cut(answer, " ")
			if first == "" {
				first = pod
			}
			require.Equal(t, first, pod, "%q -> %s", where, to)
		}
	}
}

// TestAffinityIsBounded checks that clients beyond a service's limit are served round-robin, and that other services
// have limits of their own.
func TestAffinityIsBounded(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.pod("client")
	w.objects.deliver(nil,
		service("web", "10.43.0.10", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1", b.String()+"@n1"))
	w.objects.deliver(nil,
		service("other", "10.43.0.11", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }))
	w.objects.deliver(nil, slice("other", 8080, a.String()+"@n1", b.String()+"@n1"))
	w.start()
	k, err := newKernel(&w.proxy.Config)
	require.NoError(t, err)
	defer func() { require.NoError(t, k.close()) }()
	var clients []nftables.SetElement
	for i := range uint32(affinityLimit) {
		clients = append(clients, nftables.SetElement{Key: []byte(word(i)), Val: a.AsSlice()})
	}
	set := k.clients("backend-default/web/TCP/80", chain{affinity: 1, clients: affinityLimit})
	change := func(apply func(*nftables.Set, []nftables.SetElement) error, all []nftables.SetElement) {
		for part := range slices.Chunk(all, 1000) {
			require.NoError(t, apply(set, part))
			require.NoError(t, k.conn.Flush())
		}
	}
	change(k.conn.SetAddElements, clients)
	ask := func(address string) string {
		answer, err := w.ask("client", "tcp", address+":80")
		require.NoError(t, err)
		return answer
	}
	first := ask("10.43.0.10")
	require.NotEqual(t, first, ask("10.43.0.10"))
	require.Equal(t, first, ask("10.43.0.10"))
	require.Equal(t, ask("10.43.0.11"), ask("10.43.0.11"))
	change(k.conn.SetDeleteElements, clients[:1])
	first = ask("10.43.0.10")
	require.Equal(t, first, ask("10.43.0.10"))
}

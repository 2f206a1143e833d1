package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestRenumber checks that the result contains exactly the new endpoints, and that remaining ones keep their numbers
// if possible.
func TestRenumber(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) []netip.AddrPort {
		var all []netip.AddrPort
		for _, n := range rapid.SliceOfDistinct(rapid.IntRange(1, 12), rapid.ID[int]).Draw(t, "numbers") {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80))
		}
		return all
	})
	rapid.Check(t, func(t *rapid.T) {
		before, now := gen.Draw(t, "before"), sorted(gen.Draw(t, "now"))
		out := renumber(before, now)
		require.ElementsMatch(t, now, out)
		for i, e := range before {
			if i < len(now) && slices.Contains(now, e) {
				require.Equal(t, e, out[i])
			}
		}
	})
}

// model is a kernel for tests. It rejects what the real one rejects.
type model struct {
	elements map[element]claim
	chains   map[string]chain
}

func newModel() *model { return &model{map[element]claim{}, map[string]chain{}} }

func (m *model) apply(t require.TestingT, d *delta) {
	for _, e := range d.remove {
		require.Contains(t, m.elements, e)
		delete(m.elements, e)
	}
	used := func() map[string]bool {
		all := map[string]bool{}
		for e, c := range m.elements {
			if e.set.verdicts() && c.value != chainReject && c.value != chainDrop {
				all[c.value] = true
			}
		}
		return all
	}
	for _, name := range d.dropChain {
		require.Contains(t, m.chains, name)
		require.False(t, used()[name], "a chain is dropped only when nothing names it")
		delete(m.chains, name)
	}
	for name, c := range d.addChain {
		require.NotEqual(t, m.chains[name], c)
		m.chains[name] = c
	}
	for _, e := range d.add {
		require.NotContains(t, m.elements, e)
		c := d.values[e]
		if !e.set.verdicts() {
			c.service = types.NamespacedName{} // other sets have no comments
		}
		m.elements[e] = c
	}
	for name := range used() {
		require.Contains(t, m.chains, name, "it is named and must exist")
	}
}

// TestDelta checks that after any changes of services, in any batches, the kernel's content is what the services
// require, and that no transaction is invalid. Services compete for external addresses and share endpoints.
func TestDelta(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		s, kernel := newState(), newModel()
		type input struct {
			service *corev1.Service
			slices  []*discoveryv1.EndpointSlice
		}
		inputs := map[types.NamespacedName]input{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			plans := map[types.NamespacedName]*servicePlan{}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 3, rapid.ID[string]).Draw(t, "touched") {
				in := input{}
				if rapid.IntRange(0, 4).Draw(t, "there") > 0 {
					in.service = service(name, "10.43.0."+fmt.Sprint(1+slices.Index(names, name)), func(s *corev1.Service) {
						if rapid.Bool().Draw(t, "external") {
							s.Spec.ExternalIPs = []string{"198.51.100.1"}
						}
						if rapid.Bool().Draw(t, "affinity") {
							s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
						}
						if rapid.Bool().Draw(t, "udp") {
							s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
						}
						if rapid.Bool().Draw(t, "local") {
							s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
						}
					})
				}
				var endpoints []string
				for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 6), 0, 5, rapid.ID[int]).Draw(t, "endpoints") {
					endpoints = append(endpoints, fmt.Sprintf("10.42.0.%d@n%d", n, 1+n%2))
				}
				in.slices = []*discoveryv1.EndpointSlice{slice(name, 8080, endpoints...)}
				if in.service != nil && in.service.Spec.Ports[0].Protocol == corev1.ProtocolUDP {
					udp := corev1.ProtocolUDP
					in.slices[0].Ports[0].Protocol = &udp
				}
				key := types.NamespacedName{Namespace: "default", Name: name}
				inputs[key] = in
				plans[key] = plan(testNode, in.service, in.slices, s.plans[key])
			}
			kernel.apply(t, s.apply(plans))
		}
		fresh := newState()
		final := newModel()
		plans := map[types.NamespacedName]*servicePlan{}
		for name, in := range inputs {
			plans[name] = plan(testNode, in.service, in.slices, s.plans[name])
		}
		fresh.apply(plans)
		final.apply(t, fresh.everything())
		require.Equal(t, final.elements, kernel.elements)
		require.Equal(t, final.chains, kernel.chains)
		require.Equal(t, slices.Sorted(maps.Keys(kernel.chains)), slices.Sorted(maps.Keys(s.chains)))
		require.True(t, s.apply(plans).empty(), "the same again changes nothing")
	})
}

// TestMembers checks that members are unique, and that an endpoint keeps its member when others change.
func TestMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var before *backend
		for range 5 {
			now := &backend{affinity: 1}
			for _, n := range rapid.SliceOfDistinct(rapid.IntRange(0, 11), rapid.ID[int]).Draw(t, "endpoints") {
				now.endpoints = append(now.endpoints,
					netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n / 3)}), 80+uint16(n%3)))
			}
			now.nameMembers(before)
			require.Len(t, now.members, len(now.endpoints))
			seen := map[netip.Addr]bool{}
			for i, e := range now.endpoints {
				require.False(t, seen[now.members[i]])
				seen[now.members[i]] = true
				if before != nil {
					if at := slices.Index(before.endpoints, e); at >= 0 {
						require.Equal(t, before.members[at], now.members[i])
					}
				}
			}
			before = now
		}
	})
}

// TestSlotsCannotBeChosen checks that names, which users choose, do not determine a service's slot.
func TestSlotsCannotBeChosen(t *testing.T) {
	slots := map[slot]bool{}
	for _, uid := range []types.UID{"a", "b"} {
		svc := service("a", "10.43.0.5", func(s *corev1.Service) { s.UID = uid })
		for s := range plan(testNode, svc, []*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")}, nil).backends {
			slots[s] = true
		}
	}
	require.Len(t, slots, 2)
}

// TestChangeIsSmall checks that adding or removing an endpoint changes few elements, however many endpoints exist.
func TestChangeIsSmall(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "a"}
	var endpoints []string
	for i := range 100 {
		endpoints = append(endpoints, fmt.Sprintf("10.42.1.%d@n2", i+1))
	}
	s := newState()
	apply := func(endpoints []string) *delta {
		p := plan(testNode, service("a", "10.43.0.5"), []*discoveryv1.EndpointSlice{slice("a", 8080, endpoints...)},
			s.plans[name])
		return s.apply(map[types.NamespacedName]*servicePlan{name: p})
	}
	apply(endpoints)
	d := apply(slices.Delete(slices.Clone(endpoints), 3, 4))
	require.LessOrEqual(t, len(d.remove)+len(d.add), 5)
}

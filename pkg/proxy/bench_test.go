package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// big is the state of 5,000 services with three endpoints each, one in ten of them with a node port.
func big() (*state, []types.NamespacedName) {
	s := newState()
	plans := map[types.NamespacedName]*servicePlan{}
	var names []types.NamespacedName
	for i := range 5000 {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("s", i)}
		plans[name] = bigPlan(i, 3, nil)
		names = append(names, name)
	}
	s.apply(plans)
	return s, names
}

func bigPlan(i, endpoints int, before *servicePlan) *servicePlan {
	name := fmt.Sprint("s", i)
	svc := service(name, fmt.Sprintf("10.43.%d.%d", 1+i/250, 1+i%250), func(s *corev1.Service) {
		if i%10 == 0 {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = 30000 + int32(i/10)
		}
	})
	var all []string
	for e := range endpoints {
		all = append(all, fmt.Sprintf("10.42.%d.%d@n%d", 1+(i+e)/250%250, 1+(i+e)%250, e))
	}
	return plan(testNode, svc, []*discoveryv1.EndpointSlice{slice(name, 8080, all...)}, before)
}

func benchKernel(b *testing.B) *kernel {
	c := &Config{Prefix: "bench", NodeIP: nodeAddr, ServiceCIDR: serviceCIDR, ClusterCIDR: clusterCIDR}
	k, err := newKernel(c)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, k.reset()); require.NoError(b, k.close()) })
	return k
}

// BenchmarkFullSync writes 5,000 services in one transaction, as at a start.
func BenchmarkFullSync(b *testing.B) {
	k := benchKernel(b)
	s, _ := big()
	for b.Loop() {
		require.NoError(b, k.replace(s.everything()))
	}
}

// BenchmarkUpdate changes one of 5,000 services: "scale" has one endpoint more or less, "move" as many in other places.
func BenchmarkUpdate(b *testing.B) {
	k := benchKernel(b)
	s, names := big()
	require.NoError(b, k.replace(s.everything()))
	for _, c := range []struct {
		name   string
		change func(i int) *servicePlan
	}{
		{"scale", func(i int) *servicePlan { return bigPlan(i%5000, 2+i/5000%3, s.plans[names[i%5000]]) }},
		{"move", func(i int) *servicePlan {
			p := bigPlan(i%5000, 3, s.plans[names[i%5000]])
			for _, to := range p.backends {
				to.endpoints = slices.Clone(to.endpoints)
				to.endpoints[i%3] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 42, 255, byte(i)}), 8080)
			}
			return p
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var worst time.Duration
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				d := s.apply(map[types.NamespacedName]*servicePlan{names[i%5000]: c.change(i)})
				require.NoError(b, k.update(d))
				worst = max(worst, time.Since(began))
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-us")
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	s, names := big()
	for i := 0; b.Loop(); i++ {
		s.apply(map[types.NamespacedName]*servicePlan{names[i%5000]: bigPlan(i%5000, 2+i%2, s.plans[names[i%5000]])})
	}
}

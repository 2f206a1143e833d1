package proxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestCostOfOneService measures what a tenant's service costs at each change: 2,000 ports, the most that the API
// accepts, and slices with as many endpoints or ports as a request has room for.
func TestCostOfOneService(t *testing.T) {
	const ports = 2000
	svc := service("s", "10.43.0.10", func(s *corev1.Service) {
		s.Spec.Ports = nil
		for i := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1 + i),
				Protocol: corev1.ProtocolTCP})
		}
	})
	many := func(endpoints, numbers int, suffix string) (all []*discoveryv1.EndpointSlice) {
		for i := range 100 {
			var texts []string
			for e := range endpoints {
				texts = append(texts, fmt.Sprintf("10.%d.%d.%d@n1%s", i, e/250, 1+e%250, suffix))
			}
			one := slice("s", 8080, texts...)
			one.Ports = nil
			for p := range numbers {
				name, port := fmt.Sprint("p", ports-1-p), int32(8080)
				one.Ports = append(one.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
			}
			all = append(all, one)
		}
		return all
	}
	for name, slices := range map[string][]*discoveryv1.EndpointSlice{
		"ready endpoints": many(1000, 1, ""), "endpoints that are not ready": many(1000, ports, "!"),
		"ports without endpoints": many(0, ports, ""), "ports and endpoints": many(1000, ports, ""),
	} {
		t.Run(name, func(t *testing.T) {
			before := used()
			plan(testNode, svc, slices, nil)
			took := used() - before
			t.Log(took)
			require.Less(t, took, time.Second)
		})
	}
}

// used returns the processor time of the process.
func used() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

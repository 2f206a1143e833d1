package fit

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// target is a Service of the part's namespace that an address names, and its pod if the address names one.
type target struct {
	service, pod string
	port         int32
}

// targets returns the Services and pods of a namespace that a gRPC address may name, the likeliest first. It returns
// nil for other addresses.
func targets(address, namespace string) []target {
	address, ok := endpoint(address)
	if !ok {
		return nil
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		if strings.ContainsAny(address, "[]:") {
			return nil
		}
		host, text = address, "443" // gRPC's default
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if _, ip := netip.ParseAddr(host); err != nil || ip == nil || host == "" || host == "localhost" {
		return nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	full := false
	for _, suffix := range []string{".svc.cluster.local", ".svc"} {
		if rest, ok := strings.CutSuffix(host, suffix); ok && !full {
			host, full = rest, true
		}
	}
	n, labels := int32(port), strings.Split(host, ".")
	switch {
	case len(labels) == 1 && !full:
		return []target{{labels[0], "", n}}
	case len(labels) == 2 && full && labels[1] == namespace:
		return []target{{labels[0], "", n}}
	case len(labels) == 2 && !full:
		var list []target
		if _, of, ok := ordinal(labels[0]); ok && of != "" {
			list = append(list, target{labels[1], labels[0], n})
		}
		if labels[1] == namespace {
			list = append(list, target{labels[0], "", n})
		}
		return list
	case len(labels) == 3 && labels[2] == namespace:
		return []target{{labels[1], labels[0], n}}
	}
	return nil
}

// endpoint strips the scheme of the dns and passthrough resolvers from an address; ok is false for other resolvers.
func endpoint(address string) (string, bool) {
	scheme, rest, ok := strings.Cut(address, ":")
	if !ok {
		return address, true
	}
	switch scheme {
	case "dns":
		rest, ok := strings.CutPrefix(rest, "///")
		return rest, ok
	case "passthrough":
		return strings.CutPrefix(rest, "///")
	}
	return address, !strings.HasPrefix(rest, "/") && !strings.Contains(rest, ":")
}

func ordinal(pod string) (n int, set string, ok bool) {
	i := strings.LastIndexByte(pod, '-')
	if i < 0 {
		return 0, "", false
	}
	n, err := strconv.Atoi(pod[i+1:])
	return n, pod[:i], err == nil && n >= 0
}

// Names returns the sorted names of the Services that a part's programs may call, for Around.Services.
func Names(facts []*protocol.Facts, namespace string) (names []string) {
	for _, f := range facts {
		if f == nil {
			continue
		}
		for _, c := range f.Clients {
			for _, t := range targets(c.Address, namespace) {
				names = append(names, t.service)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// clients checks that the Services and pods that the programs call exist.
func (c *comparison) clients() error {
	for _, client := range c.Clients {
		list := targets(client.Address, c.Namespace)
		if len(list) == 0 {
			continue
		}
		i := slices.IndexFunc(list, func(t target) bool { return c.Services[t.service] != nil })
		if i < 0 {
			c.warn(client.Place, "%s names no existing Service: there is no Service %s in this namespace", client.Address,
				list[0].service)
			continue
		}
		if err := c.client(client, list[i], c.Services[list[i].service]); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) client(client protocol.Client, t target, s *corev1.Service) error {
	kind := owned(s)
	headless := s.Spec.ClusterIP == corev1.ClusterIPNone
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == t.port })
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
	case i < 0 && kind != "" && !headless && t.pod == "":
		return wrong(client.Place, "the Service %s of %s %s has no port %d; it has %s", s.Name, kind, s.Name, t.port,
			listed(s.Spec.Ports))
	case i < 0:
		c.warn(client.Place, "the Service %s has no port %d; it has %s", s.Name, t.port, listed(s.Spec.Ports))
	case kind == "BuildbarnScheduler":
		c.scheduler(client, s.Spec.Ports[i])
	}
	replicas, known := c.Storage[s.Name]
	if n, set, ok := ordinal(t.pod); ok && known && set == s.Name && int64(n) >= int64(replicas) {
		c.warn(client.Place, "there is no pod %s: BuildbarnStorage %s has %d (replicas), the last is %s-%d", t.pod, s.Name,
			replicas, s.Name, max(replicas-1, 0))
	}
	return nil
}

// scheduler warns if a frontend or worker calls a port of the scheduler that is not meant for it. It is no problem,
// because the scheduler's configuration may have exchanged the ports.
func (c *comparison) scheduler(client protocol.Client, p corev1.ServicePort) {
	want := map[string]int32{
		"frontend": buildbarn.PortSchedulerClient, "worker": buildbarn.PortSchedulerWorker,
	}[c.Component]
	if want != 0 && p.Port != want {
		c.warn(client.Place, "port %d of a scheduler is %s; %ss call port %d", p.Port, p.Name, c.Component, want)
	}
}

func listed(ports []corev1.ServicePort) string {
	var list []string
	for _, p := range ports {
		list = append(list, fmt.Sprintf("%d (%s)", p.Port, p.Name))
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

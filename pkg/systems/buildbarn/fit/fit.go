// Package fit compares a part's configuration with the Services, claims and other parts of its farm.
//
// Its functions are pure. Their invariant: a problem is a fault that keeps the part from working, whatever else
// changes. A difference that may be intended, or may resolve itself, is a warning.
package fit

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// Around holds the objects of a farm that a part's configuration may refer to.
type Around struct {
	Namespace, Component string
	// Ports are the ports of the part's Service; the startup probe uses the first. Workers have none.
	Ports []corev1.ServicePort
	// Claims are the sizes of the part's claims, in bytes, by mount path.
	Claims map[string]int64
	// Services are the existing Services among the names that Names returned. Storage is the number of replicas of the
	// BuildbarnStorages with these names.
	Services map[string]*corev1.Service
	Storage  map[string]int32
	// Schedulers and Frontends are the facts of the namespace's schedulers and frontends, by name; a value is nil if
	// its configuration is not known. Empty means that the worker may scale to zero. Only workers use these fields.
	Schedulers, Frontends map[string]*protocol.Facts
	Empty                 bool
}

// Compare returns the first problem of a part's files, or "" and all warnings. It returns neither if the facts of a
// file are nil.
func Compare(facts []*protocol.Facts, a Around) (problem string, warnings []string) {
	var all protocol.Facts
	for _, f := range facts {
		if f == nil {
			return "", nil // the file's content is not known
		}
		all.Servers, all.Clients, all.Files = append(all.Servers, f.Servers...), append(all.Clients, f.Clients...), append(
			all.Files, f.Files...)
		all.Queues = append(all.Queues, f.Queues...)
	}
	c := comparison{Around: a, Facts: all}
	for _, check := range []func() error{c.ports, c.twice, c.runners, c.sizes, c.clients, c.queues} {
		if err := check(); err != nil {
			return err.Error(), nil
		}
	}
	return "", c.warnings
}

type comparison struct {
	Around
	protocol.Facts
	warnings []string
}

func (c *comparison) warn(at protocol.Place, format string, args ...any) {
	c.warnings = append(c.warnings, wrong(at, format, args...).Error())
}

func wrong(at protocol.Place, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %s", at.Line, at.Field, fmt.Sprintf(format, args...))
}

// listener is the address of a server. An empty host means all addresses.
type listener struct {
	protocol.Place
	host string
	port int32
}

// listeners returns the addresses of the part's servers; ok is false if one of them cannot be parsed.
func (c *comparison) listeners() (list []listener, ok bool) {
	for _, s := range c.Servers {
		if s.Address == "" {
			continue
		}
		host, port, err := net.SplitHostPort(s.Address)
		if err != nil {
			return nil, false
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, false // a service name, such as "http"
		}
		list = append(list, listener{s.Place, host, int32(n)})
	}
	return list, true
}

// ports checks that a server listens on each port of the part's Service. A missing first port is a problem, because the
// startup probe uses it; another missing port is a warning.
func (c *comparison) ports() error {
	listeners, ok := c.listeners()
	if !ok {
		return nil
	}
	for i, p := range c.Ports {
		var only *listener
		found := false
		for _, l := range listeners {
			if l.port == p.Port && !loopback(l.host) {
				found = true
			} else if l.port == p.Port {
				only = &l
			}
		}
		switch {
		case found:
		case only != nil && i == 0:
			return wrong(only.Place,
				"%s can only be reached from within the pod, not by the Service and the startup probe: use ':%d'",
				only.host, p.Port)
		case i == 0 && len(listeners) > 0:
			return wrong(listeners[0].Place,
				"no server listens on port %d, which the Service and the startup probe use: add ':%d' to a server's "+
					"listenAddresses", p.Port, p.Port)
		case len(listeners) > 0:
			c.warn(listeners[0].Place, "no server listens on port %d (%s), which the Service uses", p.Port, p.Name)
		}
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// twice finds two servers of the pod that listen on the same address.
func (c *comparison) twice() error {
	listeners, ok := c.listeners()
	if !ok {
		return nil
	}
	for i, l := range listeners {
		for _, before := range listeners[:i] {
			if l.port == before.port && l.port != 0 && (l.host == before.host || l.host == "" || before.host == "") {
				return wrong(l.Place, "port %d is already used by %s in %s, in the same pod: choose another port", l.port,
					before.Field, before.Line)
			}
		}
	}
	return nil
}

// runners checks that a runner listens on the socket that its worker calls.
func (c *comparison) runners() error {
	if c.Component != "worker" {
		return nil
	}
	var paths []string
	for _, s := range c.Servers {
		if s.Path != "" {
			paths = append(paths, path.Clean(s.Path))
		}
	}
	for _, client := range c.Clients {
		socket, ok := strings.CutPrefix(client.Address, "unix://")
		if !ok || !strings.HasPrefix(socket, "/") || !strings.Contains(client.Field, ".runners[") ||
			slices.Contains(paths, path.Clean(socket)) {
			continue
		}
		listens := "listens on no socket"
		if len(paths) > 0 {
			listens = "listens on " + strings.Join(paths, ", ")
		}
		return wrong(client.Place, "the pod's runner does not listen on %s: it %s (listenPaths in the runner's file)",
			socket, listens)
	}
	return nil
}

// sizes checks that the files on each claim fit into it together.
func (c *comparison) sizes() error {
	sums := map[string]int64{}
	for _, f := range c.Files {
		for mount, size := range c.Claims {
			if !strings.HasPrefix(path.Clean(f.Path), mount+"/") || f.Bytes < 0 {
				continue
			}
			before := sums[mount]
			if f.Bytes > size || before > size-f.Bytes {
				return wrong(f.Place,
					"%s has %s, together with other files %s, but the claim at %s has %s: lower sizeBytes, or enlarge the claim",
					f.Path,
					mebibytes(f.Bytes), mebibytes(min(before, size)+min(f.Bytes, 1<<62)), mount, mebibytes(size))
			}
			sums[mount] = before + f.Bytes
		}
	}
	return nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// Claims returns the mount paths of a BuildbarnStorage's claims, by claim name.
func Claims() map[string]string {
	return map[string]string{"cas": "/storage-cas", "ac": "/storage-ac"}
}

// owned returns the Buildbarn kind that controls a Service, or "". The user cannot change the ports of such a Service.
func owned(s *corev1.Service) (kind string) {
	for _, o := range s.OwnerReferences {
		if o.Controller != nil && *o.Controller && strings.HasPrefix(o.APIVersion, buildbarn.GroupVersion.Group+"/") {
			return o.Kind
		}
	}
	return ""
}

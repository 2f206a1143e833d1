package server

import (
	"context"
	"net/netip"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/servers"
)

// serversFile stores the addresses of the servers that a joined machine knows, beside its identity.
const serversFile = "servers"

// serverHosts returns the host and port of each URL; the default port is 443.
func serverHosts(urls []string) (hosts []string) {
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue // Config.Validate rejects it
		}
		host := u.Host
		if u.Port() == "" {
			host += ":443"
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// serverFollower is the component that updates an agent's list of servers from the API's EndpointSlice.
type serverFollower struct {
	client client.Interface
	list   *servers.List
	run.Readiness
}

func (f *serverFollower) Name() string { return "servers" }

func (f *serverFollower) Run(ctx context.Context) error {
	// The service proxy also watches EndpointSlices, so this opens no additional watch.
	slices, err := f.client.Cache().GetInformer(ctx, &discoveryv1.EndpointSlice{})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	registration, err := slices.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    f.seen,
		UpdateFunc: func(_, o any) { f.seen(o) },
	})
	if err != nil {
		return err
	}
	f.SetReady()
	<-ctx.Done()
	return slices.RemoveEventHandler(registration)
}

func (f *serverFollower) seen(o any) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok || s.Namespace != metav1.NamespaceDefault || s.Name != apiMeta(true).Name || len(s.Ports) != 1 ||
		s.Ports[0].Port == nil {
		return
	}
	port := *s.Ports[0].Port
	if s.Ports[0].Protocol != nil && *s.Ports[0].Protocol != corev1.ProtocolTCP || port <= 0 || port > 65535 {
		return
	}
	var list []netip.AddrPort
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				list = append(list, netip.AddrPortFrom(a, uint16(port)))
			}
		}
	}
	f.list.Set(list)
}

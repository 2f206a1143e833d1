package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// serviceResolver finds an address behind a service that webhooks are called at: a ready endpoint, as upstream's endpoint resolver, since a
// server need not run on a node that proxies services. It implements webhook.ServiceResolver.
type serviceResolver struct{ client client.Interface }

// ResolveEndpoint implements webhook.ServiceResolver.
func (r serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var s corev1.Service
	if err := r.client.Get(ctx, ctrl.ObjectKey{Namespace: namespace, Name: name}, &s); err != nil {
		return nil, err
	}
	at := func(host string, port int32) *url.URL {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return at(s.Spec.ExternalName, port), nil
	}
	var want *corev1.ServicePort
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Port == port {
			want = &s.Spec.Ports[i]
		}
	}
	if want == nil {
		return nil, fmt.Errorf("no service port %d found for service %q", port, name)
	}
	var slices discoveryv1.EndpointSliceList
	if err := r.client.List(ctx, &slices, ctrl.InNamespace(namespace), ctrl.MatchingLabels{discoveryv1.LabelServiceName: name}); err != nil {
		return nil, err
	}
	var found []*url.URL
	for i := range slices.Items {
		slice := &slices.Items[i]
		for _, p := range slice.Ports {
			if p.Port == nil || (p.Name == nil && want.Name != "") || (p.Name != nil && *p.Name != want.Name) {
				continue
			}
			for _, e := range slice.Endpoints {
				if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					found = append(found, at(e.Addresses[0], *p.Port))
				}
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no endpoints available for service %q", name)
	}
	return found[rand.N(len(found))], nil //nolint:gosec // it spreads load
}

package ingress

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// table is what requests are routed by. It is immutable once in use, apart from the counters of its backends.
type table struct {
	exact, wildcard map[string]*host // by name; a wildcard's without "*."
	any             *host            // rules without a host
	fallback        *backend         // spec.defaultBackend
	certificates    map[string]*tls.Certificate
	// services and secrets are those that the table depends on.
	services, secrets map[types.NamespacedName]bool
	// refused are the things that an Ingress asks for and does not get, by its name.
	refused map[types.NamespacedName][]string
}

// host has the paths of one host.
type host struct {
	exact, prefix map[string]*route // prefixes without a slash at the end
}

// route is the destination of a path.
type route struct {
	backend  *backend
	redirect bool // of plain HTTP to HTTPS
	owner    types.NamespacedName
}

// backend is a port of a service.
type backend struct {
	endpoints []netip.AddrPort
	h2c       bool
	secured   *secured             // nil without TLS
	secret    types.NamespacedName // with its authorities, if it has a name
	next      atomic.Uint32        // round robin
	why       string               // there are no endpoints
}

// pick returns the endpoint to try first, and then the others in turn.
func (b *backend) pick(attempt int, first uint32) netip.AddrPort {
	return b.endpoints[(int(first%uint32(len(b.endpoints)))+attempt)%len(b.endpoints)]
}

// reader looks up what Ingresses refer to. A nil secret is one that cannot be used, with the reason.
type reader struct {
	backend     func(namespace string, ref *networkingv1.IngressServiceBackend) (*backend, error)
	certificate func(name types.NamespacedName) (*tls.Certificate, error)
}

// The annotations that are heeded. All others, also those of other controllers, are ignored.
const (
	// annotationRedirect "true" redirects plain HTTP to HTTPS with status 308.
	annotationRedirect = "ingress.coracle.dev/ssl-redirect"
)

// build makes a table from Ingresses of our class. Of two rules with the same host and path, that of the older Ingress
// wins.
func build(ingresses []*networkingv1.Ingress, r reader) *table {
	t := &table{
		exact: map[string]*host{}, wildcard: map[string]*host{}, any: newHost(), certificates: map[string]*tls.Certificate{},
		services: map[types.NamespacedName]bool{}, secrets: map[types.NamespacedName]bool{},
		refused: map[types.NamespacedName][]string{},
	}
	ingresses = slices.Clone(ingresses)
	slices.SortFunc(ingresses, func(a, b *networkingv1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	b := &builder{table: t, read: r, backends: map[string]*backend{}, owners: map[string]types.NamespacedName{}}
	for _, i := range ingresses {
		b.add(i)
	}
	return t
}

// builder adds Ingresses to a table, the oldest first.
type builder struct {
	*table
	read     reader
	backends map[string]*backend
	// fallbackOwner is the Ingress of the default backend, owners are the Ingresses of the hosts of certificates.
	fallbackOwner types.NamespacedName
	owners        map[string]types.NamespacedName
}

func (b *builder) refuse(i *networkingv1.Ingress, format string, args ...any) {
	name := types.NamespacedName{Namespace: i.Namespace, Name: i.Name}
	b.refused[name] = append(b.refused[name], fmt.Sprintf(format, args...))
}

func (b *builder) add(i *networkingv1.Ingress) {
	name := types.NamespacedName{Namespace: i.Namespace, Name: i.Name}
	redirect := i.Annotations[annotationRedirect] == "true"
	if d := i.Spec.DefaultBackend; d != nil {
		if b.fallback != nil {
			b.refuse(i, "the default backend is that of the older Ingress %s", b.fallbackOwner)
		} else {
			b.fallback, b.fallbackOwner = b.backend(i, d), name
		}
	}
	for _, rule := range i.Spec.Rules {
		h := b.hostOf(rule.Host)
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			r := &route{backend: b.backend(i, &p.Backend), redirect: redirect, owner: name}
			h.add(p, r, func(owner types.NamespacedName) {
				b.refuse(i, "host %q, path %q belong to the older Ingress %s", rule.Host, p.Path, owner)
			})
		}
	}
	for _, s := range i.Spec.TLS {
		if s.SecretName != "" { // else the default certificate
			b.certificate(i, s)
		}
	}
}

// backend returns the backend of a path. Paths of one service and port share it.
func (b *builder) backend(i *networkingv1.Ingress, of *networkingv1.IngressBackend) *backend {
	if of.Service == nil {
		b.refuse(i, "backend %s: resources are not supported as backends, only services", of.Resource.Name)
		return &backend{why: "the backend is not a service"}
	}
	key := fmt.Sprintf("%s/%s %d %s", i.Namespace, of.Service.Name, of.Service.Port.Number, of.Service.Port.Name)
	b.services[types.NamespacedName{Namespace: i.Namespace, Name: of.Service.Name}] = true
	found := b.backends[key]
	if found == nil {
		var err error
		if found, err = b.read.backend(i.Namespace, of.Service); err != nil {
			if found == nil {
				found = &backend{}
			}
			found.endpoints, found.why = nil, err.Error()
		}
		if found.secret.Name != "" {
			b.secrets[found.secret] = true
		}
		b.backends[key] = found
	}
	if len(found.endpoints) == 0 && found.why != "" {
		b.refuse(i, "backend %s: %s", of.Service.Name, found.why)
	}
	return found
}

// certificate adds the certificate of a Secret for its hosts, except those that have one of an older Ingress.
func (b *builder) certificate(i *networkingv1.Ingress, s networkingv1.IngressTLS) {
	name := types.NamespacedName{Namespace: i.Namespace, Name: i.Name}
	secret := types.NamespacedName{Namespace: i.Namespace, Name: s.SecretName}
	b.secrets[secret] = true
	c, err := b.read.certificate(secret)
	if err != nil {
		b.refuse(i, "secret %s: %v", s.SecretName, err)
		return
	}
	hosts := s.Hosts
	if len(hosts) == 0 {
		hosts = c.Leaf.DNSNames
	}
	for _, h := range hosts {
		h = strings.ToLower(h)
		if owner, taken := b.owners[h]; taken && owner != name {
			b.refuse(i, "the certificate of host %q is that of the older Ingress %s", h, owner)
		} else if !taken {
			b.owners[h], b.certificates[h] = name, c
		}
	}
}

func newHost() *host { return &host{exact: map[string]*route{}, prefix: map[string]*route{}} }

func (t *table) hostOf(name string) *host {
	name = strings.ToLower(name)
	if name == "" {
		return t.any
	}
	all := t.exact
	if suffix, ok := strings.CutPrefix(name, "*."); ok {
		all, name = t.wildcard, suffix
	}
	if all[name] == nil {
		all[name] = newHost()
	}
	return all[name]
}

// add adds a path unless it is there, as which taken is called. ImplementationSpecific is Prefix; an empty path is "/".
func (h *host) add(p networkingv1.HTTPIngressPath, r *route, taken func(owner types.NamespacedName)) {
	all, path := h.prefix, strings.TrimSuffix(p.Path, "/")
	if p.PathType != nil && *p.PathType == networkingv1.PathTypeExact {
		all, path = h.exact, p.Path
	}
	if was := all[path]; was != nil {
		if was.owner != r.owner {
			taken(was.owner)
		}
		return
	}
	all[path] = r
}

// match returns the route of a path: the exact one, else that of the longest prefix of whole elements.
func (h *host) match(path string) *route {
	if h == nil {
		return nil
	}
	if r := h.exact[path]; r != nil {
		return r
	}
	for p := strings.TrimSuffix(path, "/"); ; p = p[:strings.LastIndexByte(p, '/')] {
		if r := h.prefix[p]; r != nil {
			return r
		}
		if p == "" || !strings.Contains(p, "/") {
			return nil
		}
	}
}

// route returns the route of a request: of the host itself, else of a wildcard, which is one label, else of rules
// without a host, else the default backend. Nil: there is none.
func (t *table) route(name, path string) *route {
	name = hostname(name)
	if r := t.exact[name].match(path); r != nil {
		return r
	}
	if _, suffix, ok := strings.Cut(name, "."); ok {
		if r := t.wildcard[suffix].match(path); r != nil {
			return r
		}
	}
	if r := t.any.match(path); r != nil {
		return r
	}
	if t.fallback != nil {
		return &route{backend: t.fallback}
	}
	return nil
}

// certificate returns the certificate for a server name, or nil.
func (t *table) certificate(name string) *tls.Certificate {
	name = hostname(name)
	if c := t.certificates[name]; c != nil {
		return c
	}
	if _, suffix, ok := strings.Cut(name, "."); ok {
		return t.certificates["*."+suffix]
	}
	return nil
}

// hostname is the name in a Host header: in lower case, without port and the dot of the root.
func hostname(h string) string {
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		h = h[:i]
	}
	return strings.TrimSuffix(strings.ToLower(h), ".")
}

// dotted reports whether a path has elements "." or "..", by which a backend might see another path than was routed.
func dotted(path string) bool {
	for element := range strings.SplitSeq(path, "/") {
		if element == "." || element == ".." {
			return true
		}
	}
	return strings.ContainsAny(path, "\\\x00")
}

var _ http.Handler = (*handler)(nil)

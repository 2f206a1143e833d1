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

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// table routes requests. Apart from its backends' counters it is not modified once in use.
type table struct {
	exact, wildcard map[string]*host // by host name; wildcards without "*."
	any             *host            // the rules without a host
	fallback        *route           // spec.defaultBackend
	claims          claims
	certificates    map[string]*tls.Certificate
	// services and secrets are the objects that the table depends on.
	services, secrets map[types.NamespacedName]bool
	// refused are the problems of each Ingress, by its name.
	refused map[types.NamespacedName][]string
}

type host struct {
	exact, prefix map[string]*route // prefixes have no trailing slash
}

type route struct {
	backend  *backend
	redirect bool // redirect HTTP to HTTPS
	owner    types.NamespacedName
}

type backend struct {
	handler   http.Handler // of a backend that is not a service; nil otherwise
	endpoints []netip.AddrPort
	h2c       bool
	secured   *secured             // nil if the backends do not use TLS
	secret    types.NamespacedName // the Secret with the certificate authorities; no name without TLS
	next      atomic.Uint32        // counter for round robin
	why       string               // why there are no endpoints
}

// pick returns the endpoint for an attempt: the first, and on later attempts the next in turn.
func (b *backend) pick(attempt int, first uint32) netip.AddrPort {
	return b.endpoints[(int(first%uint32(len(b.endpoints)))+attempt)%len(b.endpoints)]
}

// reader looks up the objects that Ingresses refer to. The functions return an error for an object that cannot be
// used.
type reader struct {
	backend     func(namespace string, ref *networkingv1.IngressServiceBackend) (*backend, error)
	certificate func(name types.NamespacedName) (*tls.Certificate, error)
	resource    func(namespace string, ref *corev1.TypedLocalObjectReference) (http.Handler, error)
}

// Annotations that we support. All others, including those for other controllers, are ignored.
const (
	// annotationRedirect "true" redirects HTTP to HTTPS with status 308.
	annotationRedirect = "ingress.coracle.dev/ssl-redirect"
)

// build builds a table from Ingresses of our classes. A host belongs to one namespace (claims). If two rules have the
// same host and path, the older Ingress wins.
func build(ingresses []*networkingv1.Ingress, r reader) *table {
	t := &table{
		exact: map[string]*host{}, wildcard: map[string]*host{}, any: newHost(), certificates: map[string]*tls.Certificate{},
		services: map[types.NamespacedName]bool{}, secrets: map[types.NamespacedName]bool{},
		refused: map[types.NamespacedName][]string{},
	}
	ingresses = slices.Clone(ingresses)
	slices.SortFunc(ingresses, func(a, b *networkingv1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	t.claims = claim(ingresses)
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
	owners   map[string]types.NamespacedName // the Ingresses that set the certificates, by host
}

// maxProblems limits the problems of one Ingress that are reported, since one may have tens of thousands of paths. It
// also limits the services and pods that take our ports, which are problems of each Ingress.
const maxProblems = 16

func (b *builder) refuse(i *networkingv1.Ingress, format string, args ...any) {
	name := types.NamespacedName{Namespace: i.Namespace, Name: i.Name}
	if len(b.refused[name]) < maxProblems {
		b.refused[name] = append(b.refused[name], fmt.Sprintf(format, args...))
	}
}

// may reports whether an Ingress may serve a host, and records a problem of the Ingress if not.
func (b *builder) may(i *networkingv1.Ingress, host string) bool {
	host = strings.ToLower(host)
	if b.claims.may(host, i.Namespace) {
		return true
	}
	what := fmt.Sprintf("host %q belongs", host)
	if host == "" {
		what = "the default backend and rules without a host belong"
	}
	_, first, _ := b.claims.owner(host)
	b.refuse(i, "%s to the namespace of the older Ingress %s, whose annotation %s does not list this namespace", what,
		first, annotationShare)
	return false
}

func (b *builder) add(i *networkingv1.Ingress) {
	name := types.NamespacedName{Namespace: i.Namespace, Name: i.Name}
	redirect := i.Annotations[annotationRedirect] == "true"
	if d := i.Spec.DefaultBackend; d != nil && b.may(i, "") {
		if b.fallback != nil {
			b.refuse(i, "the default backend is that of the older Ingress %s", b.fallback.owner)
		} else {
			b.fallback = &route{backend: b.backend(i, d), owner: name}
		}
	}
	for _, rule := range i.Spec.Rules {
		if rule.HTTP == nil || !b.may(i, rule.Host) {
			continue
		}
		h := b.hostOf(rule.Host)
		for _, p := range rule.HTTP.Paths {
			r := &route{backend: b.backend(i, &p.Backend), redirect: redirect, owner: name}
			h.add(p, r, func(owner types.NamespacedName) {
				b.refuse(i, "host %q, path %q belong to the older Ingress %s", rule.Host, p.Path, owner)
			})
		}
	}
	for _, s := range i.Spec.TLS {
		if s.SecretName != "" { // without a name, the default certificate is used
			b.certificate(i, s)
		}
	}
}

// backend returns the backend of a path. Paths with the same service and port share one.
func (b *builder) backend(i *networkingv1.Ingress, of *networkingv1.IngressBackend) *backend {
	if of.Service == nil {
		return b.resource(i, of.Resource)
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

// certificate adds the certificate in a Secret for its hosts, unless an older Ingress has set a host's certificate.
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
		if !b.may(i, h) {
			continue
		}
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

// add adds a path. If the path exists, it calls taken with the owner unless that is the same Ingress. It treats
// ImplementationSpecific as Prefix, and an empty path as "/".
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

// match returns the route for a path: the exact one, else the route with the longest prefix of whole path elements.
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

// route returns the route for a request, or nil. It tries the host's own rules, a wildcard for one label, rules
// without a host, and the default backend, as far as their namespaces may serve the host.
func (t *table) route(name, path string) *route {
	name = hostname(name)
	if r := t.exact[name].match(path); r != nil {
		return r
	}
	var wildcard *host
	if _, suffix, ok := strings.Cut(name, "."); ok {
		wildcard = t.wildcard[suffix]
	}
	for _, r := range [...]*route{wildcard.match(path), t.any.match(path), t.fallback} {
		if r != nil && t.claims.may(name, r.owner.Namespace) {
			return r
		}
	}
	return nil
}

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

// hostname returns the name in a Host header in lower case, without port and trailing dot.
func hostname(h string) string {
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		h = h[:i]
	}
	return strings.TrimSuffix(strings.ToLower(h), ".")
}

// dotted reports whether a path contains "." or ".." elements, a backslash or NUL. A backend might resolve such a
// path to another one than was routed.
func dotted(path string) bool {
	for element := range strings.SplitSeq(path, "/") {
		if element == "." || element == ".." {
			return true
		}
	}
	return strings.ContainsAny(path, "\\\x00")
}

var _ http.Handler = (*handler)(nil)

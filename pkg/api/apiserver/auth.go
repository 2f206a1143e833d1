package apiserver

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/coracle-dev/coracle/pkg/api/access"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

type auth struct {
	getter
	always   bool                  // authorize every request
	clients  func() *x509.CertPool // nil: no client certificate is trusted
	check    func(name string, node *corev1.Node, cert *x509.Certificate) error
	tokens   authenticator.Token
	access   *access.Access // may be nil
	accounts serviceaccount.PublicKeysGetter
	remember tokenCache
	graph    *node.Graph
	node     *node.NodeAuthorizer
	rbac     *rbac.RBACAuthorizer
}

func newAuth(cfg Config) (*auth, error) {
	a := &auth{
		getter: newGetter(cfg.Cache, cfg.Kinds.Table()),
		check:  cfg.CheckNode,
		access: cfg.Access,
		always: cfg.AlwaysAllow,
	}
	switch {
	case cfg.ClientCAs != nil:
		a.clients = cfg.ClientCAs
	case cfg.TLS != nil && cfg.TLS.ClientCAs != nil:
		a.clients = func() *x509.CertPool { return cfg.TLS.ClientCAs }
	}
	var chain []authenticator.Token
	if cfg.ServiceAccountKeys != nil {
		keys := presentKeys(cfg.ServiceAccountKeys)
		if _, err := serviceaccount.StaticPublicKeysGetter(keys()); err != nil {
			return nil, err
		}
		a.accounts = keys
		kept, err := serviceaccount.NewLegacyValidator(true, a.getter, usedSecrets{cfg.Registry, a.secrets})
		if err != nil {
			return nil, err
		}
		chain = append(chain,
			serviceaccount.JWTTokenAuthenticator(cfg.Issuers, keys, cfg.Audiences, serviceaccount.NewValidator(a.getter)),
			serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, cfg.Audiences, kept))
	}
	if cfg.Tokens != nil {
		chain = append(chain, cfg.Tokens)
	}
	chain = append(chain,
		authenticator.WrapAudienceAgnosticToken(cfg.Audiences,
			bootstrap.NewTokenAuthenticator(bootstrapTokens{getter: a.getter})))
	if cfg.Access != nil { // last, because it may ask token providers outside the cluster
		chain = append(chain, cfg.Access)
	}
	audiences := authenticator.Audiences(cfg.Audiences)
	a.tokens = authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if _, ok := authenticator.AudiencesFrom(ctx); !ok && len(audiences) > 0 {
			ctx = authenticator.WithAudiences(ctx, audiences)
		}
		var all []error
		for _, t := range chain {
			res, ok, err := t.AuthenticateToken(ctx, token)
			if ok {
				return res, true, nil
			}
			if err != nil {
				all = append(all, err)
			}
		}
		return nil, false, errors.Join(all...)
	})
	a.graph = node.NewGraph()
	a.node = node.NewAuthorizer(a.graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	a.rbac = rbac.New(a.getter, a.getter, a.getter, a.getter)
	return a, nil
}

// presentKeys is a serviceaccount.PublicKeysGetter whose keys may change at any time. It parses the few keys again
// for each token that the token cache does not have.
type presentKeys func() []any

func (presentKeys) AddListener(serviceaccount.Listener) {}

// GetCacheAgeMaxSeconds returns upstream's value for static keys: relying parties outside the cluster may use an old
// key set for that long.
func (presentKeys) GetCacheAgeMaxSeconds() int { return 3600 }

func (p presentKeys) GetPublicKeys(ctx context.Context, keyIDHint string) []serviceaccount.PublicKey {
	keys, err := serviceaccount.StaticPublicKeysGetter(p())
	if err != nil {
		return nil
	}
	return keys.GetPublicKeys(ctx, keyIDHint)
}

type connectionKey struct{}

// connection caches the identity of a connection's peer: its certificate is verified once, and again whenever the CAs
// change.
type connection struct {
	mu    sync.Mutex
	roots *x509.CertPool // the CAs that it was verified against
	user  user.Info
	until time.Time
	err   error
}

func (c *connection) peer(roots *x509.CertPool,
	verify func() (user.Info, time.Time, error)) (user.Info, time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.roots != roots {
		c.user, c.until, c.err = verify()
		c.roots = roots
	}
	return c.user, c.until, c.err
}

func withConnection(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

// authenticate returns the user of a request, or nil if it has no valid credentials.
func (a *auth) authenticate(req *http.Request) (user.Info, error) {
	var certErr error
	if a.access != nil {
		res, ok, err := a.access.AuthenticateRequest(req)
		if ok {
			return authenticated(res.User), nil
		}
		certErr = err
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 && a.clients != nil {
		c, _ := req.Context().Value(connectionKey{}).(*connection)
		if c == nil {
			c = &connection{}
		}
		roots := a.clients()
		who, until, err := c.peer(roots, func() (user.Info, time.Time, error) { return a.certificate(req, roots) })
		switch {
		case err != nil:
			certErr = err
		case time.Now().After(until):
			certErr = errors.New("the client certificate has expired")
		default:
			if certErr = a.checkNode(req.Context(), who, req.TLS.PeerCertificates[0]); certErr == nil {
				return who, nil
			}
		}
	}
	token := bearer(req)
	if token == "" {
		return nil, certErr
	}
	who, err := a.token(req.Context(), token)
	if err != nil || who == nil {
		return nil, errors.Join(certErr, err)
	}
	return who, nil
}

// anonymous returns system:anonymous for a request without a bearer token if the configuration allows anonymous
// access to its path, otherwise nil.
func (a *auth) anonymous(req *http.Request) user.Info {
	if a.access == nil || bearer(req) != "" || !a.access.Anonymous(req.URL.Path) {
		return nil
	}
	return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
}

func (a *auth) certificate(req *http.Request, roots *x509.CertPool) (user.Info, time.Time, error) {
	certs := req.TLS.PeerCertificates
	o := x509.VerifyOptions{
		Roots:         roots,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		Intermediates: x509.NewCertPool(),
	}
	for _, c := range certs[1:] {
		o.Intermediates.AddCert(c)
	}
	chains, err := certs[0].Verify(o)
	if err != nil {
		return nil, time.Time{}, err
	}
	res, ok, err := x509request.CommonNameUserConversion.User(chains[0])
	if err != nil || !ok {
		return nil, time.Time{}, errors.Join(errors.New("the client certificate has no user name"), err)
	}
	return authenticated(withAddresses(res.User, certs[0], req.RemoteAddr)), certs[0].NotAfter, nil
}

// withAddresses adds the addresses that a node's machine has proven to its user.
func withAddresses(u user.Info, cert *x509.Certificate, remote string) user.Info {
	if !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return u
	}
	var all []string
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	if from, err := netip.ParseAddrPort(remote); err == nil {
		if ip := from.Addr().Unmap().String(); !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[pki.AddressesExtra] = all
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

// checkNode refuses the certificate of a node that was deleted or whose name now belongs to another machine.
func (a *auth) checkNode(ctx context.Context, who user.Info, cert *x509.Certificate) error {
	name, node := strings.CutPrefix(who.GetName(), "system:node:")
	if a.check == nil || !node {
		return nil
	}
	n, err := a.GetNode(ctx, name)
	if err != nil { // the node does not exist
		n = nil
	}
	return a.check(name, n, cert)
}

// bearer returns the request's token, from Authorization or from a WebSocket's subprotocol, as browsers send it.
func bearer(req *http.Request) string {
	if h := req.Header.Get("Authorization"); h != "" {
		scheme, token, _ := strings.Cut(h, " ")
		if !strings.EqualFold(scheme, "bearer") {
			return ""
		}
		return strings.TrimSpace(token)
	}
	return webSocketToken(req)
}

// token authenticates a bearer token. A successful signature check is cached for ten seconds; the existence of the
// service account and the bound object is checked on every request.
func (a *auth) token(ctx context.Context, token string) (user.Info, error) {
	key := sha256.Sum256([]byte(token))
	if u := a.remember.get(key); u != nil && a.alive(u) {
		return u, nil
	}
	res, ok, err := a.tokens.AuthenticateToken(ctx, token)
	if err != nil || !ok {
		return nil, err
	}
	u := authenticated(res.User)
	if slices.Contains(u.GetGroups(), "system:serviceaccounts") {
		a.remember.put(key, u)
	}
	return u, nil
}

func authenticated(u user.Info) user.Info {
	if slices.Contains(u.GetGroups(), user.AllAuthenticated) {
		return u
	}
	return &user.DefaultInfo{
		Name:   u.GetName(),
		UID:    u.GetUID(),
		Extra:  u.GetExtra(),
		Groups: append(slices.Clone(u.GetGroups()), user.AllAuthenticated),
	}
}

// tokenCache caches users by token hash for ten seconds. When it reaches 1,024 entries, it is cleared.
type tokenCache struct {
	mu sync.Mutex
	m  map[[sha256.Size]byte]remembered
}

type remembered struct {
	user  user.Info
	until time.Time
}

func (c *tokenCache) get(key [sha256.Size]byte) user.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.m[key]; ok && time.Now().Before(r.until) {
		return r.user
	}
	return nil
}

func (c *tokenCache) put(key [sha256.Size]byte, u user.Info) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= 1024 {
		c.m = map[[sha256.Size]byte]remembered{}
	}
	c.m[key] = remembered{u, time.Now().Add(10 * time.Second)}
}

// Authorize allows system:masters, then asks the configured authorizers, by default the node authorizer and RBAC.
func (a *auth) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	u := attrs.GetUser()
	if u == nil {
		return authorizer.DecisionDeny, "no user", nil
	}
	groups := u.GetGroups()
	if a.always || slices.Contains(groups, user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	if a.access != nil && a.access.Configured() {
		return a.access.Authorize(ctx, attrs, map[string]authorizer.AuthorizerFunc{
			access.Node: a.node.Authorize, access.RBAC: a.rbac.Authorize,
		})
	}
	why := ""
	if slices.Contains(groups, user.NodesGroup) {
		d, reason, err := a.node.Authorize(ctx, attrs)
		if d == authorizer.DecisionAllow || err != nil {
			return d, reason, err
		}
		why = reason
	}
	d, reason, err := a.rbac.Authorize(ctx, attrs)
	if d != authorizer.DecisionAllow && reason == "" {
		reason = why
	}
	return d, reason, err
}

func (a *auth) RulesFor(ctx context.Context, u user.Info,
	namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resources, others, incomplete, err := a.rbac.RulesFor(ctx, u, namespace)
	if a.access != nil && a.access.Configured() {
		if !a.access.Has(access.RBAC) {
			resources, others = nil, nil
		}
		incomplete = incomplete || a.access.Webhooks()
	}
	if a.always || slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		resources = append(resources, &authorizer.DefaultResourceRuleInfo{
			Verbs:     []string{"*"},
			APIGroups: []string{"*"},
			Resources: []string{"*"},
		})
		others = append(others, &authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
	}
	if slices.Contains(u.GetGroups(), user.NodesGroup) {
		incomplete = true
	}
	return resources, others, incomplete, err
}

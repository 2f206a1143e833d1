package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	keys "github.com/coreos/go-oidc"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// maxAnswer limits a provider's response, in bytes; maxAnswerValues limits the JSON values in it.
	maxAnswer, maxAnswerValues = 1 << 20, 100_000
	providerTimeout            = 10 * time.Second
	// retryProvider is how long a provider is not asked again after an error, as upstream.
	retryProvider = 10 * time.Second
	// retryKeys is the minimum interval of requests for a provider's keys, so that tokens with unknown key IDs do
	// not cause more.
	retryKeys = time.Second
	// remember is how long a verified token is cached. maxRemembered limits the cached tokens.
	remember, maxRemembered = 10 * time.Second, 4096
)

// providers authenticates the tokens of a configuration's issuers. It fetches an issuer's keys when a token first
// needs them.
type providers struct {
	token  authenticator.Token
	cancel context.CancelFunc

	mu      sync.Mutex
	users   int
	retired bool
}

func newProviders(list []apiserver.JWTAuthenticator, algorithms []string, compiler authenticationcel.Compiler,
	cfg Config) (*providers, error) {
	ctx, cancel := context.WithCancel(context.Background())
	var all []authenticator.Token
	for _, jwt := range list {
		p, err := newProvider(ctx, jwt.Issuer)
		if err != nil {
			cancel()
			return nil, err
		}
		jwt.Issuer.DiscoveryURL, jwt.Issuer.CertificateAuthority = "", "" // the provider's client handles both
		made, err := oidc.New(ctx, oidc.Options{
			JWTAuthenticator:     jwt,
			KeySet:               p,
			Client:               p.client,
			Compiler:             compiler,
			SupportedSigningAlgs: algorithms,
			DisallowedIssuers:    cfg.Issuers,
		})
		if err != nil {
			cancel()
			return nil, err
		}
		all = append(all, made)
	}
	known := &remembering{
		next:  authenticator.WrapAudienceAgnosticToken(cfg.Audiences, tokenunion.NewFailOnError(all...)),
		ttl:   remember,
		known: cache.NewLRUExpireCache(maxRemembered),
	}
	return &providers{token: known, cancel: cancel}, nil
}

// use reports whether the providers may still be used. If so, the caller must call done afterwards.
func (p *providers) use() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired {
		return false
	}
	p.users++
	return true
}

func (p *providers) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 && p.retired {
		p.cancel()
	}
}

// retire ends the providers once no request uses them.
func (p *providers) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	if p.users == 0 {
		p.cancel()
	}
}

// provider fetches an issuer's keys. It implements go-oidc's KeySet.
type provider struct {
	issuer string
	client *http.Client
	life   context.Context //nolint:containedctx // of the key set, which fetches in the background

	busy   chan struct{} // capacity 1: serializes discovery
	keys   keys.KeySet
	failed time.Time
	err    error
}

var _ keys.KeySet = (*provider)(nil)

func newProvider(life context.Context, issuer apiserver.Issuer) (*provider, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if issuer.CertificateAuthority != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(issuer.CertificateAuthority)) {
			return nil, errors.New("certificateAuthority has no certificate")
		}
	}
	t := &transport{
		asked: map[string]time.Time{}, wellKnown: strings.TrimSuffix(issuer.URL, "/") + "/.well-known/openid-configuration",
		base: &http.Transport{
			TLSClientConfig:        config,
			ForceAttemptHTTP2:      true,
			Proxy:                  http.ProxyFromEnvironment,
			MaxResponseHeaderBytes: 64 << 10,
			IdleConnTimeout:        30 * time.Second,
		},
	}
	if issuer.DiscoveryURL != "" {
		var err error
		if t.discovery, err = url.Parse(issuer.DiscoveryURL); err != nil {
			return nil, err
		}
	}
	context.AfterFunc(life, t.base.CloseIdleConnections)
	return &provider{
		issuer: issuer.URL, life: life, busy: make(chan struct{}, 1),
		client: &http.Client{Transport: t, Timeout: providerTimeout,
			CheckRedirect: func(r *http.Request, via []*http.Request) error {
				if r.URL.Scheme != "https" || len(via) >= 10 {
					return fmt.Errorf("redirect to %s refused", r.URL)
				}
				return nil
			}},
	}, nil
}

// VerifySignature implements go-oidc's KeySet.
func (p *provider) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	set, err := p.discover(ctx)
	if err != nil {
		return nil, err
	}
	return set.VerifySignature(ctx, jwt)
}

// discover returns the provider's key set. It reads the discovery document until it succeeds once.
func (p *provider) discover(ctx context.Context) (keys.KeySet, error) {
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.keys != nil {
		return p.keys, nil
	}
	if p.err != nil && time.Since(p.failed) < retryProvider {
		return nil, p.err
	}
	life := keys.ClientContext(p.life, p.client)
	found, err := keys.NewProvider(life, p.issuer)
	var document struct {
		JWKSURL string `json:"jwks_uri"`
	}
	if err == nil {
		err = found.Claims(&document)
	}
	if err == nil && !strings.HasPrefix(document.JWKSURL, "https://") {
		err = fmt.Errorf("jwks_uri %q is not an https URL", document.JWKSURL)
	}
	if err != nil {
		p.failed, p.err = time.Now(), fmt.Errorf("oidc: issuer %s: %w", p.issuer, err)
		return nil, p.err
	}
	p.keys = keys.NewRemoteKeySet(life, document.JWKSURL)
	return p.keys, nil
}

// transport limits the size of a provider's responses and the rate of requests, and redirects discovery to its
// configured URL.
type transport struct {
	base      *http.Transport
	wellKnown string
	discovery *url.URL // nil: below the issuer's URL

	mu    sync.Mutex
	asked map[string]time.Time // at most 16 entries
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.admit(req.URL.String()); err != nil {
		return nil, err
	}
	if t.discovery != nil && req.Method == http.MethodGet && req.URL.String() == t.wellKnown {
		req = req.Clone(req.Context())
		req.Host, req.URL = "", t.discovery
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{bounded.JSON(bounded.Reader(resp.Body, maxAnswer), maxAnswer, maxAnswerValues), resp.Body}
	return resp, nil
}

func (t *transport) admit(address string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if last, ok := t.asked[address]; ok && now.Sub(last) < retryKeys {
		return fmt.Errorf("%s was asked less than %s ago", address, retryKeys)
	}
	if len(t.asked) >= 16 {
		clear(t.asked)
	}
	t.asked[address] = now
	return nil
}

// OIDC is a provider configured by upstream's oidc-* options.
type OIDC struct {
	// Issuer and ClientID are required. An empty Issuer disables the provider.
	Issuer, ClientID string
	// CAFile has the CAs of the provider's certificate. Empty means the system's CAs.
	CAFile string
	// UsernameClaim is the claim with the user's name, to which UsernamePrefix is prepended. "-" means no prefix.
	// Empty means the issuer and "#", or no prefix if the claim is "email".
	UsernameClaim, UsernamePrefix string
	GroupsClaim, GroupsPrefix     string
	SigningAlgorithms             []string
	// RequiredClaims are claims that a token must have, with their values.
	RequiredClaims map[string]string
}

// authenticator converts the options to the structured form.
func (o OIDC) authenticator() (apiserver.JWTAuthenticator, error) {
	if o.ClientID == "" {
		return apiserver.JWTAuthenticator{}, errors.New("oidc-issuer-url and oidc-client-id must be specified together " +
			"when any oidc-* flags are set")
	}
	prefix := o.UsernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && o.UsernameClaim != "email":
		prefix = o.Issuer + "#"
	}
	a := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.Issuer, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: o.UsernameClaim, Prefix: &prefix},
		},
	}
	if o.GroupsClaim != "" {
		a.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	for claim, value := range o.RequiredClaims {
		a.ClaimValidationRules = append(a.ClaimValidationRules, apiserver.ClaimValidationRule{
			Claim: claim, RequiredValue: value,
		})
	}
	if o.CAFile != "" {
		data, err := bounded.Configured(o.CAFile, maxFile)
		if err != nil {
			return a, fmt.Errorf("oidc-ca-file: %w", err)
		}
		a.Issuer.CertificateAuthority = string(data)
	}
	return a, nil
}

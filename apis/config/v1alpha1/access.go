package v1alpha1

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Access configures authentication and authorization besides client certificates, service accounts and bootstrap
// tokens. Names and meaning are upstream's.
type Access struct {
	// AuthenticationConfig is the absolute path of an AuthenticationConfiguration (apiserver.config.k8s.io), and
	// AuthorizationConfig of an AuthorizationConfiguration. Both files are reloaded when they change. Empty means
	// none.
	AuthenticationConfig string
	AuthorizationConfig  string
	// AnonymousAuth accepts requests without credentials as system:anonymous, in the group system:unauthenticated.
	AnonymousAuth bool
	// TokenWebhook is the absolute path of a kubeconfig for the server that authenticates unknown tokens; empty
	// means none. TokenWebhookVersion is the version of its TokenReviews, and TokenWebhookTTL how long its
	// responses are cached.
	TokenWebhook        string
	TokenWebhookVersion string
	TokenWebhookTTL     time.Duration
	OIDC
	FrontProxy
	Accounts
}

// FrontProxy configures an authenticating proxy that identifies the user in request headers.
type FrontProxy struct {
	// RequestHeaderCA is the absolute path of the CAs of the proxy's client certificate. It is reloaded when it
	// changes. Empty means no proxy.
	RequestHeaderCA string
	// RequestHeaderNames are the allowed common names of the certificate. Empty means any.
	RequestHeaderNames    []string
	RequestHeaderUsers    []string
	RequestHeaderUIDs     []string
	RequestHeaderGroups   []string
	RequestHeaderPrefixes []string
}

// OIDC configures one OpenID Connect provider. AuthenticationConfig can configure several, with more settings.
// OIDCIssuer and OIDCClientID must be set together.
type OIDC struct {
	OIDCIssuer         string
	OIDCClientID       string
	OIDCCAFile         string
	OIDCUsernameClaim  string
	OIDCUsernamePrefix string
	OIDCGroupsClaim    string
	OIDCGroupsPrefix   string
	OIDCSigningAlgs    []string
	// OIDCRequiredClaims are entries "claim=value".
	OIDCRequiredClaims []string
}

// RequiredClaims returns OIDCRequiredClaims as a map.
func (o OIDC) RequiredClaims() (map[string]string, error) {
	claims := map[string]string{}
	for _, pair := range o.OIDCRequiredClaims {
		claim, value, ok := strings.Cut(pair, "=")
		if !ok || claim == "" {
			return nil, fmt.Errorf("oidc-required-claim %q is not of the form claim=value", pair)
		}
		claims[claim] = value
	}
	return claims, nil
}

func (a Access) validate() error {
	var errs []error
	errs = append(errs, oneOf("authentication-token-webhook-version", a.TokenWebhookVersion, "v1", "v1beta1"))
	if a.TokenWebhookTTL < 0 {
		errs = append(errs, fmt.Errorf("authentication-token-webhook-cache-ttl %s is negative", a.TokenWebhookTTL))
	}
	oidc := a.OIDCIssuer != "" || a.OIDCClientID != "" || a.OIDCCAFile != "" || a.OIDCUsernamePrefix != "" ||
		a.OIDCGroupsClaim != "" || a.OIDCGroupsPrefix != "" || len(a.OIDCRequiredClaims) > 0
	if oidc && (a.OIDCIssuer == "" || a.OIDCClientID == "") {
		errs = append(errs,
			errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"))
	}
	if oidc && a.AuthenticationConfig != "" {
		errs = append(errs, errors.New("authentication-config file and oidc-* flags are mutually exclusive"))
	}
	_, err := a.RequiredClaims()
	return errors.Join(append(errs, err, a.Accounts.validate())...)
}

func (a *Access) anonymousOption(f *pflag.FlagSet) {
	f.BoolVar(&a.AnonymousAuth, "anonymous-auth", false,
		"accept requests without credentials as system:anonymous; kubeadm join needs it")
}

func (a *Access) options(f *pflag.FlagSet) {
	f.StringVar(&a.AuthenticationConfig, "authentication-config", "",
		"AuthenticationConfiguration file: OpenID providers, with claims mapped and checked by CEL, and anonymous access; "+
			"reloaded when it changes")
	f.StringVar(&a.AuthorizationConfig, "authorization-config", "",
		"AuthorizationConfiguration file: the chain of Node, RBAC and webhooks; reloaded when it changes")
	f.StringVar(&a.TokenWebhook, "authentication-token-webhook-config-file", "",
		"kubeconfig of a server that authenticates unknown tokens by TokenReviews")
	f.StringVar(&a.TokenWebhookVersion, "authentication-token-webhook-version", "v1",
		"version of the token webhook's TokenReviews: v1 or v1beta1")
	f.DurationVar(&a.TokenWebhookTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute,
		"how long the token webhook's answers are valid")
}

func (o *OIDC) options(f *pflag.FlagSet) {
	f.StringVar(&o.OIDCIssuer, "oidc-issuer-url", "",
		"URL of an OpenID provider, https; --authentication-config has several, and more settings")
	f.StringVar(&o.OIDCClientID, "oidc-client-id", "", "audience of the provider's tokens")
	f.StringVar(&o.OIDCCAFile, "oidc-ca-file", "", "authorities of the provider's certificate (default the system's)")
	f.StringVar(&o.OIDCUsernameClaim, "oidc-username-claim", "sub", "claim that names the user")
	f.StringVar(&o.OIDCUsernamePrefix, "oidc-username-prefix", "",
		"prefix of user names; - for none (default the issuer's URL and #, unless the claim is email)")
	f.StringVar(&o.OIDCGroupsClaim, "oidc-groups-claim", "", "claim with the user's groups")
	f.StringVar(&o.OIDCGroupsPrefix, "oidc-groups-prefix", "", "prefix of groups")
	f.StringSliceVar(&o.OIDCSigningAlgs, "oidc-signing-algs", []string{"RS256"}, "accepted signing algorithms of tokens")
	f.StringSliceVar(&o.OIDCRequiredClaims, "oidc-required-claim", nil, "claim=value that tokens must have")
}

func (p *FrontProxy) options(f *pflag.FlagSet) {
	f.StringVar(&p.RequestHeaderCA, "requestheader-client-ca-file", "",
		"authorities of an authenticating proxy, whose headers name the user; reloaded when it changes")
	f.StringSliceVar(&p.RequestHeaderNames, "requestheader-allowed-names", nil,
		"common names that the proxy's certificate may have (default any)")
	f.StringSliceVar(&p.RequestHeaderUsers, "requestheader-username-headers", []string{"X-Remote-User"},
		"the proxy's headers with the user's name")
	f.StringSliceVar(&p.RequestHeaderUIDs, "requestheader-uid-headers", []string{"X-Remote-Uid"},
		"the proxy's headers with the user's UID")
	f.StringSliceVar(&p.RequestHeaderGroups, "requestheader-group-headers", []string{"X-Remote-Group"},
		"the proxy's headers with the user's groups")
	f.StringSliceVar(&p.RequestHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"},
		"prefixes of the proxy's headers with extra attributes of the user")
}

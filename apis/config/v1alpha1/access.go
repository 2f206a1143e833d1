package v1alpha1

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Access configures who may use the API, beside client certificates, service accounts and bootstrap tokens. Names and
// meaning are upstream's.
type Access struct {
	// AuthenticationConfig is the absolute path of an AuthenticationConfiguration (apiserver.config.k8s.io),
	// AuthorizationConfig that of an AuthorizationConfiguration. They are reloaded when they change; empty for none.
	AuthenticationConfig string `mapstructure:"authentication-config"`
	AuthorizationConfig  string `mapstructure:"authorization-config"`
	// AnonymousAuth lets requests without credentials pass as system:anonymous, with the permissions of
	// system:unauthenticated.
	AnonymousAuth bool `mapstructure:"anonymous-auth"`
	// TokenWebhook is the absolute path of a kubeconfig for the server that authenticates unknown tokens; empty for none.
	// TokenWebhookVersion is the version of its TokenReviews, and TokenWebhookTTL how long its answers are valid.
	TokenWebhook        string        `mapstructure:"authentication-token-webhook-config-file"`
	TokenWebhookVersion string        `mapstructure:"authentication-token-webhook-version"`
	TokenWebhookTTL     time.Duration `mapstructure:"authentication-token-webhook-cache-ttl"`
	OIDC                `mapstructure:",squash"`
	FrontProxy          `mapstructure:",squash"`
	Accounts            `mapstructure:",squash"`
}

// FrontProxy is an authenticating proxy in front of the API, which says in headers who a user is.
type FrontProxy struct {
	// RequestHeaderCA is the absolute path of the authorities of its client certificate, which is followed; empty for no
	// proxy.
	RequestHeaderCA string `mapstructure:"requestheader-client-ca-file"`
	// RequestHeaderNames are the common names that its certificate may have; empty for any.
	RequestHeaderNames    []string `mapstructure:"requestheader-allowed-names"`
	RequestHeaderUsers    []string `mapstructure:"requestheader-username-headers"`
	RequestHeaderUIDs     []string `mapstructure:"requestheader-uid-headers"`
	RequestHeaderGroups   []string `mapstructure:"requestheader-group-headers"`
	RequestHeaderPrefixes []string `mapstructure:"requestheader-extra-headers-prefix"`
}

// OIDC is one OpenID provider; AuthenticationConfig has several, and more settings. OIDCIssuer and OIDCClientID go
// together.
type OIDC struct {
	OIDCIssuer         string   `mapstructure:"oidc-issuer-url"`
	OIDCClientID       string   `mapstructure:"oidc-client-id"`
	OIDCCAFile         string   `mapstructure:"oidc-ca-file"`
	OIDCUsernameClaim  string   `mapstructure:"oidc-username-claim"`
	OIDCUsernamePrefix string   `mapstructure:"oidc-username-prefix"`
	OIDCGroupsClaim    string   `mapstructure:"oidc-groups-claim"`
	OIDCGroupsPrefix   string   `mapstructure:"oidc-groups-prefix"`
	OIDCSigningAlgs    []string `mapstructure:"oidc-signing-algs"`
	// OIDCRequiredClaims are "claim=value".
	OIDCRequiredClaims []string `mapstructure:"oidc-required-claim"`
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

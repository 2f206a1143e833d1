package v1alpha1

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Accounts configures the tokens of service accounts. Names and meaning are upstream's.
type Accounts struct {
	// AccountIssuers are the issuers whose tokens are accepted; the first one's are issued. Empty means
	// https://kubernetes.default.svc.CLUSTER-DOMAIN.
	AccountIssuers []string `mapstructure:"service-account-issuer"`
	// AccountJWKS is the URL of the keys in the discovery document; empty means this server's, as the client calls it.
	AccountJWKS string `mapstructure:"service-account-jwks-uri"`
	// APIAudiences are the audiences of tokens for the API; empty means the issuers.
	APIAudiences []string `mapstructure:"api-audiences"`
	// AccountSigningKey is the absolute path of the key that signs tokens; empty means that of the data directory, which
	// can be rotated. AccountKeys are those of further keys that verify tokens, such as former ones.
	AccountSigningKey string   `mapstructure:"service-account-signing-key-file"`
	AccountKeys       []string `mapstructure:"service-account-key-file"`
	// AccountMaxExpiration is the maximum lifetime of a requested token; 0 is no limit.
	AccountMaxExpiration time.Duration `mapstructure:"service-account-max-token-expiration"`
	// AccountExtendExpiration has tokens that kubelets request for pods accepted for a year, for clients that never read
	// them again.
	AccountExtendExpiration bool `mapstructure:"service-account-extend-token-expiration"`
}

// The limits of AccountMaxExpiration.
const (
	minTokenExpiration = time.Hour
	maxTokenExpiration = (1 << 32) * time.Second
)

func (a Accounts) validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, issuer := range a.AccountIssuers {
		_, err := url.Parse(issuer)
		switch {
		case issuer == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", issuer, err))
		case seen[issuer]:
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", issuer))
		}
		seen[issuer] = true
	}
	if u, err := url.Parse(a.AccountJWKS); err != nil {
		errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
	} else if a.AccountJWKS != "" && u.Scheme != "https" {
		errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %v", u))
	}
	for _, audience := range a.APIAudiences {
		if audience == "" {
			errs = append(errs, errors.New("api-audiences should not contain an empty string"))
		}
	}
	if most := a.AccountMaxExpiration; most != 0 && (most < minTokenExpiration || most > maxTokenExpiration) {
		errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	return errors.Join(errs...)
}

package v1alpha1

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Accounts configures the tokens of service accounts. Names and meaning are upstream's.
type Accounts struct {
	// AccountIssuers are the accepted issuers; the first one issues tokens. Empty means
	// https://kubernetes.default.svc.CLUSTER-DOMAIN.
	AccountIssuers []string
	// AccountJWKS is the URL of the keys in the discovery document. Empty means this server, under the address that
	// the client used.
	AccountJWKS string
	// APIAudiences are the accepted audiences of tokens. Empty means the issuers.
	APIAudiences []string
	// AccountSigningKey is the absolute path of the key that signs tokens. Empty means the data directory's key,
	// which can be rotated. AccountKeys are the paths of additional keys that verify tokens, such as previous ones.
	AccountSigningKey string
	AccountKeys       []string
	// AccountMaxExpiration is the maximum lifetime of a requested token. 0 means no limit.
	AccountMaxExpiration time.Duration
	// AccountExtendExpiration makes tokens that kubelets request for pods valid for a year, for clients that never
	// read them again.
	AccountExtendExpiration bool
}

// Bounds of AccountMaxExpiration.
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

func (a *Accounts) options(f *pflag.FlagSet) {
	f.StringSliceVar(&a.AccountIssuers, "service-account-issuer", nil,
		"issuer of service account tokens; further ones are accepted too (default "+
			"https://kubernetes.default.svc.CLUSTER-DOMAIN)")
	f.StringVar(&a.AccountJWKS, "service-account-jwks-uri", "",
		"URL of the keys of service account tokens in the discovery document, https (default /openid/v1/jwks of this server)")
	f.StringSliceVar(&a.APIAudiences, "api-audiences", nil,
		"audiences of tokens for the API (default the issuers of service account tokens)")
	f.StringVar(&a.AccountSigningKey, "service-account-signing-key-file", "",
		"file with the private key that signs service account tokens (default one of the data directory, see coracle certs)")
	f.StringSliceVar(&a.AccountKeys, "service-account-key-file", nil,
		"files with further keys, public or private, that verify service account tokens, such as former ones")
	f.DurationVar(&a.AccountMaxExpiration, "service-account-max-token-expiration", 0,
		"maximum lifetime of requested service account tokens, at least 1h; longer requests get this (default none)")
	f.BoolVar(&a.AccountExtendExpiration, "service-account-extend-token-expiration", true,
		"accept tokens that kubelets request for pods for a year, for clients that never read them again")
}

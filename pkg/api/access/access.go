// Package access authenticates and authorizes API requests by configuration files: OIDC providers, a token webhook,
// anonymous requests and the chain of authorizers, as in upstream's AuthenticationConfiguration and
// AuthorizationConfiguration. Its invariants: an invalid file never replaces a valid one; the response of a provider
// or webhook is read within limits of size and time; without configuration nothing runs.
package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

// maxFile limits the size of a configuration file, in bytes.
const maxFile = 1 << 20

// Config configures an Access. The zero value adds no users to those that the API server authenticates itself.
type Config struct {
	// AuthenticationFile is the path of an AuthenticationConfiguration (apiserver.config.k8s.io). Changes are
	// reloaded. Empty for none.
	AuthenticationFile string
	// OIDC is a single provider, configured by upstream's oidc-* options. It cannot be combined with
	// AuthenticationFile.
	OIDC OIDC
	// Anonymous accepts requests without credentials as system:anonymous. It cannot be combined with a file that
	// sets the field anonymous.
	Anonymous bool
	// Webhook authenticates the tokens that no other authenticator accepts.
	Webhook Webhook
	// Proxy is an authenticating proxy that passes users in headers.
	Proxy Proxy
	// AuthorizationFile is the path of an AuthorizationConfiguration (apiserver.config.k8s.io). Changes are
	// reloaded. Empty means the node authorizer and RBAC.
	AuthorizationFile string
	// Issuers are the issuers of the cluster's own tokens. No provider may have one of them.
	Issuers []string
	// Audiences are the API server's audiences.
	Audiences []string
	Log       *slog.Logger
}

// Access is the component "access". It authenticates tokens and authorizes requests by its configuration.
type Access struct {
	cfg Config
	// Ready once the files are watched.
	run.Readiness
	issuers   func() authenticationcel.Compiler
	matches   func() authorizationcel.Compiler
	anonymous *apiserver.AnonymousAuthConfig // from the file at the start; may be nil
	allow     func(path string) bool
	providers atomic.Pointer[providers]
	webhook   authenticator.Token // may be nil
	chain     atomic.Pointer[chain]
	proxy     atomic.Pointer[proxied]
	read      map[string]string // content of each file when last read
}

// New reads the files. Run watches them for changes.
func New(cfg Config) (*Access, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	a := &Access{cfg: cfg, issuers: sync.OnceValue(authenticationcel.NewDefaultCompiler),
		matches: sync.OnceValue(authorizationcel.NewDefaultCompiler), allow: func(string) bool { return cfg.Anonymous },
		read: map[string]string{}}
	if cfg.AuthenticationFile != "" && cfg.OIDC.Issuer != "" {
		return nil, errors.New("authentication-config file and oidc-* flags are mutually exclusive")
	}
	if err := a.startAuthentication(); err != nil {
		return nil, err
	}
	if cfg.AuthorizationFile != "" {
		if err := a.reloadAuthorization(); err != nil {
			return nil, fmt.Errorf("authorization-config %s: %w", cfg.AuthorizationFile, err)
		}
	}
	if cfg.Proxy.CAFile != "" {
		if err := a.reloadProxy(); err != nil {
			return nil, fmt.Errorf("requestheader-client-ca-file %s: %w", cfg.Proxy.CAFile, err)
		}
	}
	if cfg.Webhook.Kubeconfig != "" {
		var err error
		if a.webhook, err = newTokenWebhook(cfg.Webhook, cfg.Audiences); err != nil {
			return nil, fmt.Errorf("authentication-token-webhook-config-file %s: %w", cfg.Webhook.Kubeconfig, err)
		}
	}
	return a, nil
}

func (a *Access) startAuthentication() error {
	switch {
	case a.cfg.AuthenticationFile != "":
		if err := a.reloadAuthentication(); err != nil {
			return fmt.Errorf("authentication-config %s: %w", a.cfg.AuthenticationFile, err)
		}
	case a.cfg.OIDC.Issuer != "":
		jwt, err := a.cfg.OIDC.authenticator()
		if err != nil {
			return err
		}
		c := &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}
		if err := a.validate(c).ToAggregate(); err != nil {
			return fmt.Errorf("oidc: %w", err)
		}
		made, err := newProviders(c.JWT, a.cfg.OIDC.SigningAlgorithms, a.issuers(), a.cfg)
		if err != nil {
			return fmt.Errorf("oidc: %w", err)
		}
		a.providers.Store(made)
	}
	return nil
}

func (a *Access) validate(c *apiserver.AuthenticationConfiguration) field.ErrorList {
	errs := validation.ValidateAuthenticationConfiguration(a.issuers(), c, a.cfg.Issuers)
	for i, jwt := range c.JWT {
		if jwt.Issuer.EgressSelectorType != "" {
			errs = append(errs,
				field.Invalid(field.NewPath("jwt").Index(i).Child("issuer", "egressSelectorType"), jwt.Issuer.EgressSelectorType,
					"there are no egress selectors here: leave it out"))
		}
	}
	return errs
}

// reloadAuthentication reads the authentication file and applies it if it is valid.
func (a *Access) reloadAuthentication() error {
	c, fresh, err := load[*apiserver.AuthenticationConfiguration](a, a.cfg.AuthenticationFile)
	if err != nil || !fresh {
		return err
	}
	first := a.providers.Load() == nil
	errs := a.validate(c)
	switch {
	case first && c.Anonymous != nil && a.cfg.Anonymous:
		errs = append(errs,
			field.Forbidden(field.NewPath("anonymous"),
				"--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file"))
	case !first && !reflect.DeepEqual(a.anonymous, c.Anonymous):
		errs = append(errs, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	if err := errs.ToAggregate(); err != nil {
		return err
	}
	made, err := newProviders(c.JWT, oidc.AllValidSigningAlgorithms(), a.issuers(), a.cfg)
	if err != nil {
		return err
	}
	if first && c.Anonymous != nil {
		a.anonymous = c.Anonymous
		a.allow = allowed(*c.Anonymous)
	}
	if was := a.providers.Swap(made); was != nil {
		was.retire()
	}
	return nil
}

// allowed returns a function that reports whether anonymous requests may use a path.
func allowed(c apiserver.AnonymousAuthConfig) func(string) bool {
	return func(path string) bool {
		return c.Enabled &&
			(len(c.Conditions) == 0 ||
				slices.ContainsFunc(c.Conditions, func(o apiserver.AnonymousAuthCondition) bool { return o.Path == path }))
	}
}

// Anonymous reports whether a request without credentials may use a path.
func (a *Access) Anonymous(path string) bool { return a.allow(path) }

// AuthenticateToken implements authenticator.Token.
func (a *Access) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var errs []error
	if p := a.providers.Load(); p != nil {
		res, ok, err := a.provided(ctx, p, token)
		if ok {
			return res, true, nil
		}
		errs = append(errs, err)
	}
	if a.webhook != nil {
		res, ok, err := a.webhook.AuthenticateToken(ctx, token)
		if ok {
			return res, true, nil
		}
		errs = append(errs, err)
	}
	return nil, false, errors.Join(errs...)
}

// provided authenticates a token with the providers. It retries with the new ones if a reload has retired p.
func (a *Access) provided(ctx context.Context, p *providers, token string) (*authenticator.Response, bool, error) {
	for !p.use() {
		p = a.providers.Load()
	}
	defer p.done()
	return p.token.AuthenticateToken(ctx, token)
}

// codecs decodes the configuration files strictly.
var codecs = sync.OnceValue(func() serializer.CodecFactory { //nolint:gochecknoglobals // made when first needed
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
})

// load reads a file. fresh is false if its content is the same as at the last call.
func load[T runtime.Object](a *Access, path string) (config T, fresh bool, err error) {
	data, err := bounded.Configured(path, maxFile)
	if err != nil {
		return config, false, err
	}
	if was, known := a.read[path]; known && was == string(data) {
		return config, false, nil
	}
	a.read[path] = string(data)
	if len(data) == 0 {
		return config, false, errors.New("empty config data")
	}
	o, err := runtime.Decode(codecs().UniversalDecoder(), data)
	if err != nil {
		return config, false, err
	}
	config, ok := o.(T)
	if !ok {
		return config, false, fmt.Errorf("expected %T, got %T", config, o)
	}
	return config, true, nil
}

// Package provider gets registry credentials for images from credential provider plugins (KEP-2133). A plugin is a
// program on this machine. Its input is an image's name and, if configured, a token of the pod's service account
// (KEP-4412); its output are credentials and how long to cache them.
//
// Its invariants: a plugin is run only for images that match its configuration, and its credentials are used only for
// images that match the names in its output. Its run time, output and cache are bounded. A credential for one service
// account is never used for a pod of another.
package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kubelet/config/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// atOnce limits how many plugins run concurrently.
const atOnce = 8

// Config of Plugins.
type Config struct {
	// File is a CredentialProviderConfig, or a directory of them; BinDir contains the plugins.
	File, BinDir string
	Account      func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// Token returns a token of a pod's service account for an audience. It must fail if the account has another UID.
	Token   func(ctx context.Context, p *corev1.Pod, account types.UID, audience string) (string, error)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Plugins runs the plugins of this node. It is safe for concurrent use.
type Plugins struct {
	c        Config
	guard    run.Guard
	plugins  []*plugin
	running  chan struct{}
	failures *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

type plugin struct {
	configv1.CredentialProvider
	path   string
	flight singleflight.Group
	cache  cache
}

// New returns the configured plugins. It fails if the configuration is invalid or a program is missing.
func New(c Config) (*Plugins, error) {
	providers, hash, err := read(c.File)
	if err != nil {
		return nil, fmt.Errorf("image-credential-provider-config: %w", err)
	}
	with := promauto.With(c.Metrics)
	p := &Plugins{
		c: c, guard: run.Guard{Log: c.Logger, Component: "credential providers"}, running: make(chan struct{}, atOnce),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_credential_provider_plugin_errors_total", Help: "Number of errors from credential provider plugin",
		}, []string{"plugin_name"}),
		took: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_credential_provider_plugin_duration",
			Help: "Duration of execution in seconds for credential provider plugin",
		},
			[]string{"plugin_name"}),
	}
	with.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubelet_credential_provider_config_info",
		Help: "Information about the last applied credential provider configuration with hash as label",
	},
		[]string{"hash"}).WithLabelValues(hash).Set(1)
	for _, one := range providers {
		path, err := program(c.BinDir, one.Name)
		if err != nil {
			return nil, fmt.Errorf("image-credential-provider-bin-dir: %w", err)
		}
		p.plugins = append(p.plugins, &plugin{CredentialProvider: one, path: path})
	}
	return p, nil
}

// Credentials returns the credentials for a pod's image in the order to try them. Plugins that fail are logged.
func (p *Plugins) Credentials(ctx context.Context, pod *corev1.Pod, image string) []keyring.Credential {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	var ring keyring.Keyring
	for _, one := range p.plugins {
		if !slices.ContainsFunc(one.MatchImages, func(pattern string) bool {
			return keyring.Matches(pattern, named.Name())
		}) {
			continue
		}
		logins, account, err := p.ask(ctx, one, pod, named)
		if err != nil {
			if ctx.Err() == nil {
				p.c.Logger.Warn("could not get credentials for image from plugin", "plugin", one.Name, "image", named.Name(), "pod",
					pod.Namespace+"/"+pod.Name, "error", err)
			}
			continue
		}
		ring.AddLogins(logins, account)
	}
	return ring.Lookup(image)
}

// identity is the service account for which a plugin is run; zero if it is run for the node.
type identity struct {
	account     keyring.Account
	annotations map[string]string
	token       string
}

// errNotForPod means that the plugin's configuration excludes the pod.
var errNotForPod = errors.New("the plugin is not for this pod")

func (p *Plugins) identify(ctx context.Context, t *configv1.ServiceAccountTokenAttributes,
	pod *corev1.Pod) (identity, error) {
	name := pod.Spec.ServiceAccountName
	switch {
	case t == nil, name == "" && !*t.RequireServiceAccount:
		return identity{}, nil
	case name == "":
		return identity{}, errNotForPod
	}
	account, err := p.c.Account(ctx, pod.Namespace, name)
	if err != nil {
		return identity{}, fmt.Errorf("service account %s/%s: %w", pod.Namespace, name, err)
	}
	id := identity{
		account:     keyring.Account{UID: string(account.UID), Namespace: account.Namespace, Name: account.Name},
		annotations: map[string]string{},
	}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok { // the annotation is how workloads select the plugin
			return identity{}, errNotForPod
		}
		id.annotations[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			id.annotations[key] = value
		}
	}
	id.token, err = p.c.Token(ctx, pod, account.UID, t.ServiceAccountTokenAudience)
	return id, err
}

// ask returns a plugin's cached or new answer for an image, and the account for which it is valid.
func (p *Plugins) ask(ctx context.Context, one *plugin, pod *corev1.Pod,
	image reference.Named) (map[string]runtime.Auth, keyring.Account, error) {
	id, err := p.identify(ctx, one.TokenAttributes, pod)
	if errors.Is(err, errNotForPod) {
		return nil, keyring.Account{}, nil
	}
	if err != nil {
		return nil, keyring.Account{}, err
	}
	registry, _, _ := strings.Cut(image.Name(), "/")
	for _, of := range []string{image.Name(), registry, everything} {
		if logins, ok := one.cache.get(one.key(of, id)); ok {
			return logins, id.account, nil
		}
	}
	request := &apiv1.CredentialProviderRequest{
		Image:                     image.Name(),
		ServiceAccountToken:       id.token,
		ServiceAccountAnnotations: id.annotations,
	}
	for {
		answers := one.flight.DoChan(flightKey(request), func() (any, error) { return p.run(ctx, one, request) })
		select {
		case <-ctx.Done():
			return nil, keyring.Account{}, ctx.Err()
		case answer := <-answers:
			if errors.Is(answer.Err, context.Canceled) && ctx.Err() == nil {
				continue // the request that started the program was cancelled; start it again
			}
			if answer.Err != nil {
				return nil, keyring.Account{}, answer.Err
			}
			response, _ := answer.Val.(*apiv1.CredentialProviderResponse)
			logins, err := one.take(response, id, image.Name(), registry)
			return logins, id.account, err
		}
	}
}

// everything is the cache key of answers for all images; it is not a valid image name.
const everything = "<global>"

// key returns the cache key of an answer. With cacheType Token it includes the token; otherwise all pods of the
// service account share the answer.
func (one *plugin) key(of string, id identity) string {
	if one.TokenAttributes == nil || one.TokenAttributes.CacheType != configv1.TokenServiceAccountTokenCacheType {
		id.token = ""
	}
	return encode(of, id)
}

// flightKey returns the key under which concurrent identical requests share one run.
func flightKey(r *apiv1.CredentialProviderRequest) string {
	return encode(r.Image, identity{annotations: r.ServiceAccountAnnotations, token: r.ServiceAccountToken})
}

func encode(of string, id identity) string {
	token := ""
	if id.token != "" {
		token = keyring.Sum(id.token)
	}
	data, err := json.Marshal([]any{of, id.account, id.annotations, token})
	if err != nil {
		return "" // strings can always be marshalled
	}
	return string(data)
}

// take checks an answer and caches it for as long as it is valid.
func (one *plugin) take(r *apiv1.CredentialProviderResponse, id identity,
	image, registry string) (map[string]runtime.Auth, error) {
	logins := make(map[string]runtime.Auth, len(r.Auth))
	for of, a := range r.Auth {
		if id.token != "" && a.Password == id.token &&
			one.TokenAttributes.CacheType != configv1.TokenServiceAccountTokenCacheType {
			return nil, errors.New("the plugin returned the service account's token as password, which needs cacheType Token")
		}
		logins[of] = runtime.Auth{Username: a.Username, Password: a.Password}
	}
	var of string
	switch r.CacheKeyType {
	case apiv1.ImagePluginCacheKeyType:
		of = image
	case apiv1.RegistryPluginCacheKeyType:
		of = registry
	case apiv1.GlobalPluginCacheKeyType:
		of = everything
	default:
		return nil, fmt.Errorf("the plugin returned the cacheKeyType %.40q, which is none of Image, Registry and Global",
			r.CacheKeyType)
	}
	valid := one.DefaultCacheDuration.Duration
	if r.CacheDuration != nil {
		valid = r.CacheDuration.Duration
	}
	if valid > 0 {
		one.cache.put(one.key(of, id), logins, valid)
	}
	return logins, nil
}

func (p *Plugins) run(ctx context.Context, one *plugin,
	request *apiv1.CredentialProviderRequest) (response *apiv1.CredentialProviderResponse, err error) {
	panicked := p.guard.Do("plugin", func() { response, err = p.place(ctx, one, request) }, "plugin", one.Name)
	return response, errors.Join(panicked, err)
}

func (p *Plugins) place(ctx context.Context, one *plugin,
	request *apiv1.CredentialProviderRequest) (*apiv1.CredentialProviderResponse, error) {
	select {
	case p.running <- struct{}{}:
		defer func() { <-p.running }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := time.Now()
	response, err := one.execute(ctx, request)
	p.took.WithLabelValues(one.Name).Observe(time.Since(began).Seconds())
	if err != nil {
		p.failures.WithLabelValues(one.Name).Inc()
	}
	return response, err
}

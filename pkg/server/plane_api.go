package server

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/aggregation/apiservices"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/api/fairness"
	"github.com/coracle-dev/coracle/pkg/api/fairness/flowcontrol"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/api/webhook"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/node/netpolicy"
)

// newAPI creates the API server with its authentication, its connections to nodes, and the controllers that
// configure it.
func (l *plane) newAPI(kinds *kind.Catalog, serving *pki.Source) error {
	p, keys := l.process, l.keys
	own := l.client(user.APIServerUser, user.SystemPrivilegedGroup)
	p.authorities = newAuthorities(keys, own, p.log)
	asServer, err := keys.Client.NewSource(pki.Leaf{Name: apiServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	if err != nil {
		return err
	}
	l.members = newMembers(own, p.authorities)
	joiner := l.joiner()
	minVersion, ciphers, err := p.transport()
	if err != nil {
		return err
	}
	auditing, err := p.auditLog()
	if err != nil {
		return err
	}
	remote := &nodes{
		client: l.client(apiServerUser, user.SystemPrivilegedGroup),
		roots:  keys.Node.Pool, as: asServer.Client,
	}
	l.nodes = remote
	l.policies = netpolicy.NewResolver(own, component(p.log, "network-policies"))
	l.usage = p.newUsage(remote)
	if l.access, err = p.newAccess(l.issuers, l.audiences, l.clientAuthorities); err != nil {
		return err
	}
	settings := apiserver.Config{
		Access:   l.access,
		Registry: l.registry, Cache: l.cache, Kinds: kinds, Listener: p.listener, Address: p.Listen,
		TLS:                &tls.Config{GetCertificate: serving.Server, MinVersion: minVersion, CipherSuites: ciphers},
		ClientCAs:          keys.Client.Pool,
		ServiceAccountKeys: p.accounts.public, Issuers: l.issuers, Audiences: l.audiences, KeysURL: p.AccountJWKS,
		Nodes: remote, Policies: l.policies, Usage: l.usage,
		Checks: l.checks(), Components: l.parts(), Audit: auditing,
		CheckNode: l.members.check,
		Wrap: func(next http.Handler) http.Handler {
			return l.members.handler(p.authorities.handler(joiner.handler(next)))
		},
		Version: version.Info(), Logger: component(p.log, "apiserver"),
		Drain: p.drain, Metrics: p.metrics.plane, Fairness: fairness.Config{Seats: p.MaxInflight + p.MaxMutatingInflight},
		RequestTimeout: p.RequestTimeout, MinWatch: time.Duration(p.MinRequestTimeout) * time.Second,
		GoawayChance: p.GoawayChance, Profiling: p.Profiling, Flags: p.Server.Values(),
		MoreMetrics: []prometheus.Gatherer{
			prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return l.gatherers().Gather() }),
		}, Debug: l.inspection(),
	}
	p.given.use(&settings)
	l.lagMetrics()
	if l.apiserver, err = apiserver.New(settings); err != nil {
		return err
	}
	if l.fairness, err = flowcontrol.New(flowcontrol.Config{
		Client:    own,
		Configure: l.apiserver.ConfigureFairness,
		After:     p.started,
		Log:       component(p.log, "flowcontrol"),
	}); err != nil {
		return err
	}
	if l.aggregator, err = apiservices.New(apiservices.Config{
		Client: own, Server: l.apiserver, Kinds: kinds, Services: webhook.NewServices(l.clients.Informers()),
		Trust: l.frontProxy, After: p.started, Log: component(p.log, "aggregation"),
	}); err != nil {
		return err
	}
	l.roles = &roles{
		client:  own,
		all:     func() []ctrl.Object { return builtin.Roles(l.systems.Accounts(), l.systems.Extensions()...) },
		log:     component(p.log, "roles"),
		written: make(chan struct{}),
	}
	return nil
}

// frontProxy returns the certificate that this server presents to aggregated API servers, and the CAs that they use
// to verify it and its clients.
func (l *plane) frontProxy() (apiservices.Trust, error) {
	authority, err := pki.LoadFrontProxy(pkiDir(l.process.DataDir))
	if err != nil {
		return apiservices.Trust{}, err
	}
	as, err := authority.NewSource(pki.Leaf{Name: apiservices.FrontProxy})
	if err != nil {
		return apiservices.Trust{}, err
	}
	return apiservices.Trust{
		Certificate:   as.Client,
		FrontProxyCAs: authority.Bundle(),
		ClientCAs:     l.keys.Client.Bundle,
	}, nil
}

package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/access"
	chain "github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/api/aggregation/apiservices"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/api/customresources"
	"github.com/coracle-dev/coracle/pkg/api/fairness/flowcontrol"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/api/usage"
	"github.com/coracle-dev/coracle/pkg/api/webhook"
	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers"
	"github.com/coracle-dev/coracle/pkg/control/controllers/rootca"
	"github.com/coracle-dev/coracle/pkg/control/election"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/node/ingress"
	"github.com/coracle-dev/coracle/pkg/node/netpolicy"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/encryption"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/systems"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/rest"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// plane has the components of the control plane in this process.
type plane struct {
	process         *process
	keys            *pki.Set
	url, kubeconfig string
	// issuers are the accepted issuers of service account tokens; the first one signs. audiences are the accepted
	// audiences.
	issuers, audiences []string

	store      *store.Store
	cache      *cache.Cache
	encryption *encryption.Keeper
	kms        *encryption.Plugins
	registry   *registry.Registry
	clients    *local.Clients
	bootstrap  *bootstrap
	members    *members
	systems    systems.List
	policies   *netpolicy.Resolver
	presence   *presence
	custom     *customresources.Controller
	admin      *adminKubeconfig
	rootCA     *rootca.Bundle
	nodeCA     *rootca.Bundle
	access     *access.Access
	apiserver  *apiserver.Server
	fairness   *flowcontrol.Controller
	nodes      *nodes
	aggregator *apiservices.Controller
	usage      *usage.Collector
	roles      *roles
	ingress    *ingress.Ingress
	rest       *rest.Server
	snapshots  *autoSnapshots // nil if disabled
	// controllers and scheduler run while this server leads. They are nil if disabled.
	controllers *led[*controllers.Controllers]
	scheduler   *led[*scheduler.Scheduler]
	scheduling  scheduler.Configuration
}

// components returns the control plane's components in start order. Each comment gives the reason for the place.
func (p *plane) components() []run.Component {
	list := []run.Component{
		p.kms,        // KMS plugins, which stored objects may be encrypted with
		p.store,      // all state
		p.cache,      // follows the store
		p.encryption, // fails if a key of a stored object is missing
		p.custom,     // serves the kinds of the stored CustomResourceDefinitions
		p.bootstrap,  // creates the objects that every cluster has
		p.members,    // decides which node certificates are trusted
		p.fairness,   // reads the priority configuration before requests arrive
		p.aggregator, // reads which API groups other servers serve, before requests arrive
		p.access,     // follows the configuration of authentication and authorization
	}
	list = append(list, p.serving()...) // what the systems' requests need
	list = append(list,
		p.apiserver, // serves all of the above
		p.presence,  // adds this server to the API's endpoints
		p.roles,     // writes the default roles; administrators and nodes work without them
		p.admin,     // renews the admin kubeconfig, which newPlane wrote
		p.ingress,   // waits for the first Ingress
		p.policies,  // waits for the first NetworkPolicy
	)
	// These react to writes of clients and nodes. The node starts in parallel.
	if p.controllers != nil {
		list = append(list, run.Aside(p.controllers))
	}
	if p.scheduler != nil {
		list = append(list, run.Aside(p.scheduler))
	}
	if p.rest != nil {
		list = append(list, p.rest)
	}
	if p.snapshots != nil {
		list = append(list, p.snapshots)
	}
	var others []string
	if p.controllers == nil {
		others = append(others, election.Controllers)
	}
	if p.scheduler == nil {
		others = append(others, election.Scheduler)
	}
	if len(others) > 0 {
		list = append(list, &yielded{plane: p, leases: others})
	}
	return list
}

// serving returns the systems' components.
func (p *plane) serving() (list []run.Component) {
	dir := p.process.DataDir
	if p.process.given.Etcd.URLs != nil {
		dir = "" // it ends with the process
	}
	for _, s := range p.systems {
		if s.Serve != nil {
			list = append(list, s.Serve(system.Server{
				Name: p.process.NodeName, Dir: dir, Client: p.client(user.APIServerUser, user.SystemPrivilegedGroup),
				Connect: p.nodes.Connect, Alone: p.store.Alone, NATSContext: p.process.NATSContext,
				MessageTracing: p.process.MessageTracing, Metrics: p.process.metrics.plane,
				Log: component(p.process.log, s.Name),
			}))
		}
	}
	return list
}

// newPlane creates the components in the order of their dependencies.
func newPlane(p *process, keys *pki.Set) (*plane, error) {
	services, err := netip.ParsePrefix(p.ServiceCIDR)
	if err != nil {
		return nil, err
	}
	all := systems.All()
	kinds := kind.NewCatalog(builtin.Table(all.Extensions()...))
	api, err := p.apiAddress()
	if err != nil {
		return nil, err
	}
	l := &plane{
		process:    p,
		keys:       keys,
		systems:    all,
		url:        "https://" + api.String(),
		kubeconfig: filepath.Join(p.DataDir, command.Kubeconfig),
	}
	if p.listener != nil {
		l.url = "https://" + p.listener.Addr().String()
	}
	if l.issuers = p.AccountIssuers; len(l.issuers) == 0 {
		l.issuers = []string{"https://kubernetes.default.svc." + p.ClusterDomain}
	}
	if l.audiences = p.APIAudiences; len(l.audiences) == 0 {
		l.audiences = l.issuers
	}
	if err := l.newState(kinds, services); err != nil {
		return nil, err
	}
	l.newBootstrap(kinds, api, services)
	serving, err := keys.Server.NewSource(pki.Leaf{Name: "coracle", Hosts: append([]string{
		api.Addr().String(), p.NodeIP, p.NodeName, "127.0.0.1", "::1", "localhost", services.Addr().Next().String(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + p.ClusterDomain,
	}, p.TLSNames...)})
	if err != nil {
		return nil, err
	}
	if err := l.newAPI(kinds, serving); err != nil {
		return nil, err
	}
	if l.ingress, err = l.newIngress(); err != nil {
		return nil, err
	}
	if p.RESTAddress != "" {
		if l.rest, err = l.newREST(serving, l.nodes); err != nil {
			return nil, err
		}
	}
	if err := l.actors(kinds); err != nil {
		return nil, err
	}
	if p.SnapshotInterval > 0 && len(p.given.Etcd.URLs) == 0 && !p.volatile {
		l.snapshots = l.newSnapshots()
	}
	l.admin = &adminKubeconfig{
		dataDir: p.DataDir,
		url:     l.url,
		keys:    keys,
		log:     component(p.log, "kubeconfig"),
	}
	if p.MergeKubeconfig {
		l.admin.merged = userKubeconfig()
	}
	p.authorities.changed = []func() error{
		func() error { return l.admin.write(false) },
		func() error { l.rootCA.Set(keys.Server.Bundle()); return nil },
		func() error { l.nodeCA.Set(keys.Node.Bundle()); return nil },
		func() error { l.aggregator.Refresh(); return nil },
		func() error { l.members.endUnbelieved(keys.Client.Pool()); return nil },
	}
	return l, l.admin.write(true)
}

func (p *process) apiAddress() (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch {
	case p.given.Address.IsValid():
		host = p.given.Address.String()
	case host == "" || net.ParseIP(host).IsUnspecified():
		host = p.NodeIP
	}
	return netip.ParseAddrPort(net.JoinHostPort(host, port))
}

// newState creates the store, the cache, the registry with its admission, and the clients of this process.
func (l *plane) newState(kinds *kind.Catalog, services netip.Prefix) error {
	p := l.process
	quota, err := p.storeQuota()
	if err != nil {
		return err
	}
	values := encryption.NewValues(kinds.Table())
	if l.store, err = store.New(store.Config{
		Dir:        filepath.Join(p.DataDir, "store"),
		Logger:     component(p.log, "store"),
		QuotaBytes: quota,
		Values:     values,
		Volatile:   p.volatile,
		Servers:    p.given.Etcd,
		Metrics:    p.metrics.plane,
		Resource:   resourceOf(kinds),
		Snapshot:   func() string { return newestSnapshot(p.DataDir) },
	}); err != nil {
		return err
	}
	if l.cache, err = cache.New(cache.Config{
		Kinds:   kinds,
		Source:  l.store,
		Logger:  component(p.log, "cache"),
		Metrics: p.metrics.plane,
	}); err != nil {
		return err
	}
	if l.encryption, err = p.newEncryption(values, l.store, l.cache); err != nil {
		return err
	}
	l.kms = l.encryption.Plugins()
	if p.accounts, err = newAccountKeys(p.Accounts, pkiDir(p.DataDir), l.issuers[0], l.keys); err != nil {
		return err
	}
	if life := p.AccountMaxExpiration; life != 0 && p.AccountExtendExpiration { // the same rule as upstream's
		p.log.Warn("service-account-max-token-expiration does not limit pods' tokens, which are accepted for a year unless "+
			"service-account-extend-token-expiration is false", "limit", life)
	}
	firstPort, lastPort, err := p.NodePorts()
	if err != nil {
		return err
	}
	pods, err := netip.ParsePrefix(p.ClusterCIDR)
	if err != nil {
		return err
	}
	l.registry, err = registry.New(registry.Config{
		Kinds: kinds, Store: l.store, Cache: l.cache, ServiceCIDR: services, ClusterCIDR: pods,
		NodePortMin: firstPort, NodePortMax: lastPort, EventTTL: p.EventTTL,
		Tokens: p.accounts.tokens, Audiences: l.audiences, MaxTokenLife: p.AccountMaxExpiration,
		ExactTokenLife: !p.AccountExtendExpiration,
		Logger:         component(p.log, "registry"),
		DenyPrivileged: !p.AllowPrivileged,
	})
	if err != nil {
		return err
	}
	l.clients = local.New(l.registry, l.cache, kinds)
	plugins := chain.Plugins{
		Enable: p.EnableAdmissionPlugins, Disable: p.DisableAdmissionPlugins, Config: p.AdmissionConfig, Schemas: l.schemas,
		NotReadySeconds: &p.NotReadySeconds, UnreachableSeconds: &p.UnreachableSeconds,
	}
	if err := chain.Install(plugins, l.registry, l.clients); err != nil {
		return err
	}
	l.custom, err = customresources.New(customresources.Config{
		Client: l.client(user.APIServerUser, user.SystemPrivilegedGroup), Kinds: kinds,
		Webhooks: webhook.NewServices(l.clients.Informers()), Log: component(p.log, "customresources"),
	})
	return err
}

// newBootstrap creates the components that write the bootstrap objects and this server's API endpoint.
func (l *plane) newBootstrap(kinds *kind.Catalog, api netip.AddrPort, services netip.Prefix) {
	p := l.process
	l.bootstrap = &bootstrap{
		client: l.client(user.APIServerUser, user.SystemPrivilegedGroup), api: api, service: services.Addr().Next(),
		services: services,
		servers: newServerList(l.store, api.Addr(), l.store.Alone,
			kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Endpoints"))),
		repair: l.registry.RepairAllocations, log: component(p.log, "bootstrap"),
	}
	l.presence = &presence{bootstrap: l.bootstrap}
}

// joiner returns the handler that admits other machines.
func (l *plane) joiner() *joiner {
	p, c := l.process, l.client(user.APIServerUser, user.SystemPrivilegedGroup)
	return &joiner{
		keys: l.keys, members: l.members,
		token:   func(ctx context.Context, token string) error { return jointoken.Check(ctx, c, token, time.Now()) },
		cluster: joinAnswer{ClusterCIDR: p.ClusterCIDR, ServiceCIDR: p.ServiceCIDR, ClusterDomain: p.ClusterDomain},
		node: func(ctx context.Context, name string) (*corev1.Node, error) {
			var node corev1.Node
			if err := c.Get(ctx, ctrl.ObjectKey{Name: name}, &node); err != nil {
				return nil, ctrl.IgnoreNotFound(err)
			}
			return &node, nil
		},
		own: func() string {
			if p.node == nil {
				return ""
			}
			return p.NodeName
		},
	}
}

func (l *plane) schemas(gv schema.GroupVersion) ([]byte, error) { return l.apiserver.Schemas(gv) }

// gatherers returns the metrics of the control plane that are not in process.metrics.plane.
func (l *plane) gatherers() prometheus.Gatherers {
	list := prometheus.Gatherers{store.EtcdMetrics()}
	if l.controllers != nil {
		list = append(list, l.controllers)
	}
	if l.scheduler != nil {
		list = append(list, l.scheduler)
	}
	return list
}

// controlPlaneRole is the label that kubectl shows as a node's role. A node cannot set it itself.
const controlPlaneRole = "node-role.kubernetes.io/control-plane"

// markNode adds controlPlaneRole to this machine's Node.
func (l *plane) markNode(ctx context.Context) error {
	c := l.client(user.APIServerUser, user.SystemPrivilegedGroup)
	var node corev1.Node
	if err := c.Get(ctx, ctrl.ObjectKey{Name: l.process.NodeName}, &node); err != nil {
		return err
	}
	if _, marked := node.Labels[controlPlaneRole]; marked {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, controlPlaneRole)
	return c.Patch(ctx, &node, ctrl.RawPatch(types.MergePatchType, []byte(patch)))
}

func (l *plane) client(name string, groups ...string) client.Interface {
	return l.clients.For(&user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)})
}

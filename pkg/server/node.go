package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/servers"
	"github.com/coracle-dev/coracle/pkg/node/agent"
	"github.com/coracle-dev/coracle/pkg/node/dns"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/netpolicy"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
	"github.com/coracle-dev/coracle/pkg/node/proxy"
	"github.com/coracle-dev/coracle/pkg/node/runtime/containerd"
	"github.com/coracle-dev/coracle/pkg/node/tables"
	"github.com/coracle-dev/coracle/pkg/node/volume"
	"github.com/coracle-dev/coracle/pkg/systems"
)

// membership is a node's identity and configuration in its cluster.
type membership struct {
	client client.Interface
	// remote maintains the identity and the client's cache. It is nil in the server's own process.
	remote                   []run.Component
	machine                  string // the machine that owns the node's name
	clusterCIDR, serviceCIDR netip.Prefix
	domain                   string
	serving                  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	clientCAs                func() *x509.CertPool
	api                      part.API
	parts                    []func(part.Host) part.Part
	policies                 netpolicy.Source
}

// membership returns the membership of the server's own node, which calls the API in process.
func (l *plane) membership() (*membership, error) {
	p := l.process
	serving, err := l.keys.Node.NewSource(pki.Leaf{
		Name: nodeUser(p.NodeName), Hosts: []string{p.NodeName, p.NodeIP, "127.0.0.1"},
	})
	if err != nil {
		return nil, err
	}
	own := &user.DefaultInfo{
		Name: nodeUser(p.NodeName), Groups: []string{nodesGroup, user.AllAuthenticated},
		Extra: map[string][]string{pki.AddressesExtra: {p.NodeIP}},
	}
	m := &membership{
		machine: l.keys.Machine,
		client:  l.clients.For(own), domain: p.ClusterDomain,
		serving: serving.Server, clientCAs: l.keys.Client.Pool,
		api: &localAPI{
			handler: func() http.Handler { return l.apiserver.Handler() },
			node:    own,
		},
		policies: l.policies, parts: l.systems.Parts(),
	}
	return m, m.ranges(p.ClusterCIDR, p.ServiceCIDR)
}

func (m *membership) ranges(cluster, service string) (err error) {
	if m.clusterCIDR, err = netip.ParsePrefix(cluster); err != nil {
		return err
	}
	m.serviceCIDR, err = netip.ParsePrefix(service)
	return err
}

func (p *process) joinCluster(ctx context.Context) (*membership, error) {
	dir := pkiDir(p.DataDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Store the key first, so that an interrupted join is repeated with the same key.
	key, err := pki.LoadKey(filepath.Join(dir, "machine.key"))
	if err != nil {
		return nil, err
	}
	machine, err := pki.Identity(key.Public())
	if err != nil {
		return nil, err
	}
	log := component(p.log, "identity")
	list, err := servers.New(servers.Config{
		Seeds: serverHosts(p.Join), Client: p.NodeName, File: filepath.Join(dir, serversFile),
		Dial: (&net.Dialer{Timeout: connectPatience}).DialContext, Log: log,
	})
	if err != nil {
		return nil, err
	}
	p.servers = list
	i := &identity{
		servers: list, token: strings.TrimSpace(p.Token), nodeName: p.NodeName, nodeIP: p.NodeIP,
		dir: dir, key: key, log: log,
		refused: make(chan struct{}, 1), changed: make(chan struct{}, 1), excluded: p.excluded,
	}
	if err := i.enterOrResume(ctx); err != nil {
		return nil, fmt.Errorf("join %s: %w", strings.Join(p.Join, ", "), err)
	}
	j := i.present.Load()
	remote, err := client.New(client.Config{
		// The user agent becomes the manager of the fields that the agent writes, kubelet as upstream.
		REST: &rest.Config{Host: p.Join[0], Transport: i, UserAgent: "kubelet/" + version.Info().GitVersion},
		Known: map[ctrl.Object]meta.RESTScope{
			&corev1.Node{}: meta.RESTScopeRoot, &corev1.Pod{}: meta.RESTScopeNamespace,
			&corev1.Service{}: meta.RESTScopeNamespace, &discoveryv1.EndpointSlice{}: meta.RESTScopeNamespace,
		},
		Only: map[ctrl.Object]ctrlcache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", p.NodeName)},
		},
		Direct: []ctrl.Object{&corev1.Secret{}, &corev1.ConfigMap{}, &coordinationv1.Lease{},
			&corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}, &storagev1.VolumeAttachment{}, &storagev1.CSINode{},
			// A node may only get these by name or list its own; trust bundles are selected by signer.
			&corev1.ServiceAccount{}, &certificatesv1.PodCertificateRequest{}, &certificatesv1.ClusterTrustBundle{},
			&resourcev1.ResourceClaim{}, &resourcev1.ResourceSlice{}},
	})
	if err != nil {
		return nil, err
	}
	m := &membership{
		client: remote, remote: []run.Component{i, remote, run.Aside(&serverFollower{client: remote, list: list})},
		machine: machine, domain: j.ClusterDomain, clientCAs: i.clientCAs, serving: i.serving, api: &remoteAPI{identity: i},
		parts: systems.All().Parts(),
	}
	m.policies = netpolicy.Remote{Do: func(req *http.Request) (*http.Response, error) { return m.api.Do(req, "") }}
	return m, m.ranges(j.ClusterCIDR, j.ServiceCIDR)
}

type node struct {
	runtime *containerd.Runtime
	network *network.Net
	agent   *agent.Agent
	proxy   *proxy.Proxy
	policy  *netpolicy.Enforcer
	tables  *tables.Watcher
	dns     *dns.Server
	domain  string
	prefix  string // of our nftables tables

	clusterCIDR, serviceCIDR netip.Prefix
	check                    chan struct{} // capacity 1: networkHealth acts as a pod
}

// components returns the node's components in start order.
func (n *node) components() []run.Component {
	return []run.Component{
		n.runtime,          // finds the containers of the previous process before the agent starts
		n.network,          // maintains the routes to other nodes
		run.Aside(n.proxy), // pods from the API wait for it; static pods do not
		n.policy,           // no pod starts before its policies are enforced
		n.tables,           // rewrites the nftables tables of the three above if another program removes them
		run.Aside(n.dns),   // pods from the API wait for it; static pods do not
		n.agent,            // ready once the node is Ready
	}
}

func newNode(p *process, m *membership) (*node, error) {
	thresholds, err := config.ParseThresholds(p.EvictionHard)
	if err != nil {
		return nil, err
	}
	n := &node{
		domain: m.domain, prefix: instance(p.Config),
		clusterCIDR: m.clusterCIDR, serviceCIDR: m.serviceCIDR, check: make(chan struct{}, 1),
	}
	reserved, err := config.ParseReserved(p.KubeReserved)
	if err != nil {
		return nil, err
	}
	protect()
	if err := markNames(p.Config); err != nil {
		return nil, err
	}
	containers := containerdConfig(p.Config)
	containers.PodPIDs, containers.Reserved = max(p.PodMaxPIDs, 0), reserved
	containers.SingleProcessOOMKill = p.SingleProcessOOMKill
	containers.ImageReserve = thresholds[config.ImageFsAvailable].Of
	if n.runtime, err = containerd.New(containers); err != nil {
		return nil, err
	}
	users := userns.New(userns.Config{
		Program: n.runtime.Shim(),
		Dir:     containers.DataDir,
		IDs:     uint32(p.UserNamespaceIDs),
		Pods:    p.MaxPods,
	})
	sandboxes := networkConfig(p.Config, p.nodeIP, m.serviceCIDR)
	sandboxes.Users, sandboxes.Metrics = users, p.metrics.node
	if n.network, err = network.New(sandboxes); err != nil {
		return nil, err
	}
	n.proxy, err = proxy.New(proxy.Config{
		Client: m.client, NodeName: p.NodeName, NodeIP: p.nodeIP, ServiceCIDR: m.serviceCIDR, ClusterCIDR: m.clusterCIDR,
		Local:  map[types.NamespacedName]netip.AddrPort{dns.ServiceName: dns.Address(p.nodeIP)},
		Ports:  ownPorts(p.Config),
		Prefix: instance(p.Config), Logger: component(p.log, "proxy"), Metrics: p.metrics.node,
	})
	if err != nil {
		return nil, err
	}
	n.policy = netpolicy.NewEnforcer(netpolicy.Config{
		Source:    m.policies,
		NodeName:  p.NodeName,
		Sandboxes: n.network.Addresses,
		Prefix:    instance(p.Config),
		Logger:    component(p.log, "network-policy"),
	})
	n.tables = &tables.Watcher{Logger: component(p.log, "nftables"), Tables: []tables.Table{
		{Name: n.policy.Table(), Written: n.policy.Written, Restore: n.policy.Rewrite},
		{Name: n.network.Table(), Restore: n.network.Rewrite},
		{Name: n.proxy.Table(), Restore: n.proxy.Rewrite},
	}, Changed: func() error { return network.AcceptInDocker(n.prefix, n.clusterCIDR) }}
	n.dns, err = dns.New(dns.Config{
		Client: m.client, Domain: m.domain, Listen: []netip.AddrPort{dns.Address(p.nodeIP)},
		Allow: []netip.Prefix{m.clusterCIDR}, Logger: component(p.log, "dns"), Metrics: p.metrics.node,
	})
	if err != nil {
		return nil, err
	}
	c, err := n.agentConfig(p, m)
	if err != nil {
		return nil, err
	}
	c.Eviction = eviction.Policy{Thresholds: thresholds, Transition: p.EvictionTransition}
	c.Reserved, c.UserNamespaces = reserved, users.Supported
	if n.agent, err = agent.New(c); err != nil {
		return nil, err
	}
	n.tables.Removed = n.agent.ReportRemovedTable
	return n, nil
}

func (n *node) agentConfig(p *process, m *membership) (agent.Config, error) {
	labels, taints, err := p.registration()
	if err != nil {
		return agent.Config{}, err
	}
	periods, err := p.ShutdownPeriods()
	if err != nil {
		return agent.Config{}, err
	}
	return agent.Config{
		Environment: pod.Environment{
			Client:        m.client,
			Runtime:       n.runtime,
			Network:       n.network,
			Policies:      n.policy,
			NodeName:      p.NodeName,
			DataDir:       filepath.Join(p.DataDir, "agent"),
			RunDir:        filepath.Join(p.RunDir, "agent"),
			LogDir:        filepath.Join(p.DataDir, "logs"),
			CgroupRoot:    "/" + instance(p.Config),
			ClusterDNS:    []netip.Addr{dnsAddress(m.serviceCIDR.Addr().Next())},
			ClusterDomain: m.domain,
			SeccompDir:    filepath.Join(p.DataDir, "seccomp"),
			Probes:        probe.Guard{Any: p.PodProbeAnyHost, Ports: ownPorts(p.Config)},
			Logger:        component(p.log, "agent"),
		},
		NodeIP:               p.nodeIP,
		Labels:               labels,
		Taints:               taints,
		Annotations:          map[string]string{machineAnnotation: m.machine},
		VerifyNode:           m.check,
		PluginDir:            pluginDir(p.Config),
		PluginLink:           kubeletDir,
		ManifestDir:          manifestDir(p.Config),
		DecodeManifest:       builtin.StaticPod,
		Before:               []<-chan struct{}{n.proxy.Ready(), n.dns.Ready()},
		ClusterCIDR:          m.clusterCIDR,
		ServiceCIDR:          m.serviceCIDR,
		MaxPods:              p.MaxPods,
		LimitedSwap:          p.SwapBehavior == config.LimitedSwap,
		OnPodCIDR:            n.network.SetPodCIDR,
		ImageGCHigh:          p.ImageGCHigh,
		ImageGCLow:           p.ImageGCLow,
		CredentialConfig:     p.CredentialConfig,
		CredentialBinDir:     p.CredentialBinDir,
		AllowedUnsafeSysctls: p.AllowedUnsafeSysctls,
		Machine: eviction.Kernel{
			NodeDir:    func() string { return p.DataDir },
			ImageDir:   n.runtime.ImageDir,
			PodsCgroup: "/" + instance(p.Config),
		},
		Shutdown:       periods,
		API:            m.api,
		Parts:          m.parts,
		ListenAddress:  p.AgentListen,
		GetCertificate: m.serving,
		ClientCAs:      m.clientCAs,
		Trusted:        func(c *x509.Certificate) bool { return c.Subject.CommonName == apiServerUser },
		Metrics:        p.metrics.node,
	}, nil
}

// registration returns the Node's labels and taints from the options.
func (p *process) registration() (map[string]string, []corev1.Taint, error) {
	labels := map[string]string{}
	for _, label := range p.NodeLabels {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	var taints []corev1.Taint
	for _, taint := range p.NodeTaints {
		name, effect, ok := strings.Cut(taint, ":")
		if !ok {
			return nil, nil, fmt.Errorf("node-taints %q is not of the form key=value:Effect", taint)
		}
		key, value, _ := strings.Cut(name, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return labels, taints, nil
}

// DumpRules writes the nftables rules of this cluster, whether it runs or not.
func DumpRules(c config.Config, w io.Writer) error { return proxy.Dump(w, instance(c)) }

// containersDir is the runtime's directory in the data directory.
const containersDir = "containerd"

func containerdConfig(c config.Config) containerd.Config {
	return containerd.Config{
		DataDir: filepath.Join(c.DataDir, containersDir), RunDir: filepath.Join(c.RunDir, "containerd"),
		CgroupRoot: "/" + instance(c), Address: c.Containerd, Namespace: instance(c),
	}
}

func networkConfig(c config.Config, node netip.Addr, services netip.Prefix) network.Config {
	return network.Config{
		RunDir: filepath.Join(c.RunDir, "network"), NodeIP: node, ServiceCIDR: services, Prefix: instance(c),
		Owner: c.DataDir, OwnPorts: ownPorts(c), MetadataAccess: c.PodMetadataAccess,
		MaxConnections: int(max(c.PodMaxConnections, 0)),
	}
}

// ownPorts returns the ports that the node itself listens on. Services on node addresses and host ports cannot use
// them. A REST facade on loopback is excluded: services cannot reach loopback, and host ports never take over a
// port with a socket.
func ownPorts(c config.Config) []uint16 {
	ports := []uint16{dns.Port}
	all := append([]string{c.Listen, c.AgentListen}, serverHosts(c.Join)...)
	if host, _, err := net.SplitHostPort(c.RESTAddress); err == nil && !net.ParseIP(host).IsLoopback() {
		all = append(all, c.RESTAddress)
	}
	for _, listen := range all {
		if _, text, err := net.SplitHostPort(listen); err == nil {
			if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 {
				ports = append(ports, uint16(port))
			}
		}
	}
	return ports
}

// kubeletDir is where CSI drivers and device plugins expect the kubelet's sockets and volumes.
const kubeletDir = "/var/lib/kubelet"

// pluginDir is the actual place of those sockets and volumes. kubeletDir becomes a symbolic link to it unless
// kubeletDir is in use.
func pluginDir(c config.Config) string { return filepath.Join(c.DataDir, "agent", "kubelet") }

func manifestDir(c config.Config) string {
	return cmp.Or(c.PodManifestPath, filepath.Join(c.DataDir, "agent", "pod-manifests"))
}

// purge removes everything that the node created on this machine. No other process of the cluster may run.
func purge(ctx context.Context, c config.Config) error {
	if err := errors.Join(os.MkdirAll(c.DataDir, 0o700), markNames(c)); err != nil {
		return err
	}
	conf := containerdConfig(c)
	conf.Address = "" // remove our containers first, without the host's containerd; Purge then finds it
	runtime, err := containerd.New(conf)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- runtime.Run(ctx) }()
	select {
	case <-runtime.Ready():
		err = runtime.Purge(ctx)
		cancel()
		err = errors.Join(err, <-ended)
	case err = <-ended:
	}
	return errors.Join(err,
		network.Reset(ctx, networkConfig(c, netip.Addr{}, netip.Prefix{})),
		proxy.Reset(ctx, proxy.Config{Prefix: instance(c)}),
		netpolicy.Reset(instance(c)),
		agent.Reset(c.DataDir, c.RunDir),
		volume.DetachAll(pod.LocalVolumes(filepath.Join(c.DataDir, "agent"))),
		plugins.Close(pluginDir(c), kubeletDir))
}

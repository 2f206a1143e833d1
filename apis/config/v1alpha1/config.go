// Package v1alpha1 is the configuration of a Coracle process. Each option is a flag, a CORACLE_ environment
// variable and a key of a YAML file, with the same name.
//
// Its invariant: a Config that Validate accepts can be run, as far as this can be checked without accessing the
// machine.
package v1alpha1

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/spf13/pflag"
)

// Config is the complete configuration. Each mode uses the parts that it needs.
type Config struct {
	Common
	Server
	Agent
}

// Common has the options of all modes.
type Common struct {
	// DataDir is the directory of all persistent state, RunDir of state that need not survive a reboot. Both are
	// absolute.
	DataDir string
	RunDir  string
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// LogFormat is text or json, with one object per line.
	LogFormat string
}

// Server has the options of the control plane.
type Server struct {
	// Listen is the API's address and port. An empty address means all addresses of the machine.
	Listen string
	// TLSNames are additional host names and addresses for the serving certificate.
	TLSNames []string
	// ClusterCIDR is divided into a /24 per node. ServiceCIDR is the range of service addresses.
	ClusterCIDR string
	ServiceCIDR string
	// NodePortRange is the range of node ports for services, such as "30000-32767" or, with a size, "30000+2767".
	NodePortRange string
	// EventTTL is how long events are kept after their last write.
	EventTTL time.Duration
	// ClusterDomain is the DNS suffix of services.
	ClusterDomain string
	// NodeMonitorGracePeriod is how long a node may send no heartbeat before it counts as lost. Nodes send one
	// every 10 s.
	NodeMonitorGracePeriod time.Duration
	// TaskNodeTimeout is how long a node may send no heartbeat before the attempts of tasks on it fail.
	TaskNodeTimeout time.Duration
	// SchedulerConfig is the absolute path of a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1). Empty
	// means none.
	SchedulerConfig string
	// Disable lists components that this process does not run: Controllers, Scheduler, LoadBalancer, Ingresses.
	Disable []string
	// EnableAdmissionPlugins and DisableAdmissionPlugins change the set of admission plugins, by upstream's names.
	EnableAdmissionPlugins  []string
	DisableAdmissionPlugins []string
	// AdmissionConfig is the absolute path of an AdmissionConfiguration (apiserver.config.k8s.io/v1). Empty means
	// none.
	AdmissionConfig string
	// AllowPrivileged allows privileged containers.
	AllowPrivileged bool
	// TLSMinVersion is the minimum TLS version of the API, as named by crypto/tls (VersionTLS12). TLSCipherSuites
	// are its cipher suites, by IANA name. Empty means Go's defaults.
	TLSMinVersion   string
	TLSCipherSuites []string
	// Profiling serves Go's profiles at /debug/pprof/ of the API to administrators.
	Profiling bool
	Requests
	Tolerations
	Audit
	Access
	// StoreQuota is the maximum size of stored data, as a quantity of bytes ("512Mi"). Empty means an eighth of the
	// machine's memory.
	StoreQuota string
	Snapshots
	Encryption
	REST
	LoadBalancing
	Ingress
	// NATSContext is the absolute path of a file of `nats context save`: the NATS servers with the messages of workers
	// whose delivery.store is NATS. It is read at each new connection. Empty means none.
	NATSContext string
	// MessageTracing is the absolute path of a TracingConfiguration file. Empty means that messages have no spans.
	MessageTracing string
	// MergeKubeconfig also writes a context named coracle to ~/.kube/config.
	MergeKubeconfig bool
}

// Values of Server.Disable.
const (
	Controllers = "controllers"
	Scheduler   = "scheduler"
	// LoadBalancer assigns addresses to services of type LoadBalancer.
	LoadBalancer = "loadbalancer"
	// Ingresses serves Ingresses of the class "coracle".
	Ingresses = "ingress"
)

// Runs reports whether this process runs a component that can be disabled.
func (s Server) Runs(part string) bool { return !slices.Contains(s.Disable, part) }

// Agent has the options of a node.
type Agent struct {
	// NodeName defaults to the hostname in lower case, NodeIP to the source address of the default route.
	NodeName string
	NodeIP   string
	// NodeLabels are "key=value" and NodeTaints "key=value:Effect". They are set when the node registers.
	NodeLabels []string
	NodeTaints []string
	// MaxPods is the maximum number of pods on the node, 1 to 1000.
	MaxPods int
	// PodManifestPath is the absolute path of the directory with static pod manifests. Empty means
	// DataDir/agent/pod-manifests.
	PodManifestPath string
	// PodMetadataAccess allows pods to connect to link-local addresses, where cloud providers serve the machine's
	// credentials.
	PodMetadataAccess bool
	// PodProbeAnyHost allows probes and hooks of pods to name any host, including the machine itself.
	PodProbeAnyHost bool
	// AgentListen is the address and port of the node's own API (logs, exec).
	AgentListen string
	// Containerd is the absolute path of the socket of the host's containerd. Empty means the embedded one.
	Containerd string
	// EvictionHard are entries "signal<value". Below such a threshold the node is under pressure and pods are
	// evicted. See ParseThresholds.
	EvictionHard []string
	// EvictionTransition is how long a pressure condition stays true after the pressure has ended.
	EvictionTransition time.Duration
	Shutdown
	// When disk usage reaches ImageGCHigh percent, unused images are removed until it is at most ImageGCLow. 100
	// disables this.
	ImageGCHigh int
	ImageGCLow  int
	// CredentialConfig is the absolute path of the configuration of image credential provider plugins, a file or
	// directory, and CredentialBinDir the directory of the plugins. They must be set together.
	CredentialConfig string
	CredentialBinDir string
	// AllowedUnsafeSysctls are sysctls of the network, IPC or user namespace that pods may set, or prefixes ending
	// in "*".
	AllowedUnsafeSysctls []string
	// UserNamespaceIDs is the number of user and group IDs of a pod with a user namespace (hostUsers: false), a
	// multiple of 65536.
	UserNamespaceIDs int64
	// PodMaxPIDs is the maximum number of processes and threads in a pod. -1 means no limit.
	PodMaxPIDs int64
	// SingleProcessOOMKill ends only the process that exceeds a container's memory limit, not the whole container, as
	// the kubelet's setting does. On cgroup v1 this is always so.
	SingleProcessOOMKill bool
	// SwapBehavior is NoSwap or LimitedSwap, as the kubelet's memorySwap.swapBehavior (KEP-2400).
	SwapBehavior string
	// PodMaxConnections is the maximum number of open connections, of all protocols, that a pod began. -1 means no limit.
	PodMaxConnections int64
	// KubeReserved are resources that pods cannot use, such as "memory=512Mi". See ParseReserved.
	KubeReserved []string
	// Join are the URLs of servers for `coracle agent`. Token is a join token for them, and TokenFile a file with
	// the token. A machine that has joined before needs no token. It learns the URLs of further servers from the
	// API.
	Join      []string
	Token     string
	TokenFile string
}

// Validate returns all errors at once, each with the name of its option.
func (c Config) Validate() error {
	return errors.Join(c.Common.validate(), c.Server.validate(), c.Agent.validate())
}

func (c Common) validate() error {
	return errors.Join(
		directory("data-dir", c.DataDir), directory("run-dir", c.RunDir),
		within("run-dir", c.RunDir, "data-dir", c.DataDir), within("data-dir", c.DataDir, "run-dir", c.RunDir),
		oneOf("log-level", c.LogLevel, "debug", "info", "warn", "error"), oneOf("log-format", c.LogFormat, "text", "json"))
}

// userNamespaceUnit is the unit of UserNamespaceIDs, as in the kubelet.
const userNamespaceUnit = 65536

const maxJoin = 64

// shortestGrace is the minimum of NodeMonitorGracePeriod. It allows one missed heartbeat.
const shortestGrace = 20 * time.Second

func (c Server) validate() error {
	cluster, err1 := cidr("cluster-cidr", c.ClusterCIDR, 8, 24)
	service, err2 := cidr("service-cidr", c.ServiceCIDR, 8, 24)
	errs := []error{err1, err2, listen("listen", c.Listen)}
	if err1 == nil && err2 == nil && cluster.Overlaps(service) {
		errs = append(errs,
			fmt.Errorf("cluster-cidr %s and service-cidr %s overlap: choose separate ranges", cluster, service))
	}
	if bad := validation.IsDNS1123Subdomain(c.ClusterDomain); len(bad) > 0 {
		errs = append(errs, fmt.Errorf("cluster-domain %q: %s", c.ClusterDomain, bad[0]))
	}
	for _, part := range c.Disable {
		errs = append(errs, oneOf("disable", part, Controllers, Scheduler, LoadBalancer, Ingresses))
	}
	if c.NodeMonitorGracePeriod < shortestGrace {
		errs = append(errs,
			fmt.Errorf("node-monitor-grace-period %s is too short: nodes send a heartbeat every 10s: use %s or more",
				c.NodeMonitorGracePeriod, shortestGrace))
	}
	if c.TaskNodeTimeout < shortestGrace {
		errs = append(errs,
			fmt.Errorf("task-node-timeout %s is too short: nodes send a heartbeat every 10s: use %s or more", c.TaskNodeTimeout,
				shortestGrace))
	}
	if _, err := cliflag.TLSVersion(c.TLSMinVersion); err != nil {
		errs = append(errs,
			fmt.Errorf("tls-min-version %q is not one of %s", c.TLSMinVersion,
				strings.Join(cliflag.TLSPossibleVersions(), ", ")))
	}
	if _, err := cliflag.TLSCipherSuites(c.TLSCipherSuites); err != nil {
		errs = append(errs,
			fmt.Errorf("tls-cipher-suites: %w; there are %s", err, strings.Join(cliflag.TLSCipherPossibleValues(), ", ")))
	}
	if _, err := c.StoreQuotaBytes(); err != nil {
		errs = append(errs, err)
	}
	if _, _, err := c.NodePorts(); err != nil {
		errs = append(errs, err)
	}
	if c.EventTTL < shortestEventTTL || c.EventTTL > longestEventTTL {
		errs = append(errs, fmt.Errorf("event-ttl %s is not within %s to %s", c.EventTTL, shortestEventTTL, longestEventTTL))
	}
	errs = append(errs, c.validateFiles(), c.Requests.validate(), c.Tolerations.validate(), c.Audit.validate(),
		c.Access.validate(), c.Snapshots.validate(), c.Encryption.validate(), c.REST.Validate(),
		c.LoadBalancing.validate(cluster, service), c.Ingress.validate())
	return errors.Join(errs...)
}

// Bounds of EventTTL. The store expires keys with a precision of up to 2 s. Events of a namespace are limited by
// rate, not by number, so the TTL must be bounded too.
const (
	shortestEventTTL = 10 * time.Second
	longestEventTTL  = 30 * 24 * time.Hour
)

// NodePorts returns the first and last port of NodePortRange.
func (c Server) NodePorts() (first, last int32, err error) {
	r, err := utilnet.ParsePortRange(c.NodePortRange)
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("service-node-port-range %q is not a range of ports such as 30000-32767: %w", c.NodePortRange,
			err)
	case r.Size < 1 || r.Base < 1 || r.Base+r.Size-1 > 65535:
		return 0, 0, fmt.Errorf("service-node-port-range %q is not within 1-65535", c.NodePortRange)
	}
	return int32(r.Base), int32(r.Base + r.Size - 1), nil
}

// Bounds of StoreQuota. etcd recommends at most 8 GiB. The minimum is just enough for the default roles.
const (
	MinStoreQuota = 16 << 20
	MaxStoreQuota = 8 << 30
)

// StoreQuotaBytes returns StoreQuota in bytes, or 0 if it is empty.
func (c Server) StoreQuotaBytes() (int64, error) {
	if c.StoreQuota == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(c.StoreQuota)
	if err != nil || q.Value() < MinStoreQuota || q.Value() > MaxStoreQuota {
		return 0, fmt.Errorf("store-quota %q is not a quantity of bytes within 16Mi to 8Gi", c.StoreQuota)
	}
	return q.Value(), nil
}

func (c Agent) validate() error {
	errs := append(c.validateReserved(), listen("agent-listen", c.AgentListen))
	if bad := validation.IsDNS1123Subdomain(c.NodeName); c.NodeName != "" && len(bad) > 0 {
		errs = append(errs, fmt.Errorf("node-name %q: %s", c.NodeName, bad[0]))
	}
	if c.NodeIP != "" {
		if _, err := netip.ParseAddr(c.NodeIP); err != nil {
			errs = append(errs, fmt.Errorf("node-ip %q is not an IP address", c.NodeIP))
		}
	}
	for _, label := range c.NodeLabels {
		key, value, ok := strings.Cut(label, "=")
		if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); !ok || len(bad) > 0 {
			errs = append(errs, fmt.Errorf("node-labels %q is not of the form key=value", label))
		}
	}
	for _, taint := range c.NodeTaints {
		_, effect, ok := strings.Cut(taint, ":")
		if !ok || !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, effect) {
			errs = append(errs,
				fmt.Errorf("node-taints %q is not of the form key=value:Effect, with NoSchedule, PreferNoSchedule or NoExecute",
					taint))
		}
	}
	if c.MaxPods < 1 || c.MaxPods > 1000 {
		errs = append(errs, fmt.Errorf("max-pods %d is not within 1 to 1000", c.MaxPods))
	}
	if n := c.UserNamespaceIDs; n < userNamespaceUnit || n > math.MaxUint32 || n%userNamespaceUnit != 0 {
		errs = append(errs,
			fmt.Errorf("user-namespaces-ids-per-pod %d is not a multiple of %d up to %d", n, userNamespaceUnit,
				uint32(math.MaxUint32)))
	}
	if c.PodManifestPath != "" {
		errs = append(errs, directory("pod-manifest-path", c.PodManifestPath))
	}
	if (c.CredentialConfig == "") != (c.CredentialBinDir == "") {
		errs = append(errs,
			errors.New("image-credential-provider-config and image-credential-provider-bin-dir need each other"))
	}
	for option, path := range map[string]string{
		"image-credential-provider-config": c.CredentialConfig, "image-credential-provider-bin-dir": c.CredentialBinDir,
	} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s %q is not an absolute path", option, path))
		}
	}
	if c.Containerd != "" && !filepath.IsAbs(strings.TrimPrefix(c.Containerd, "unix://")) {
		errs = append(errs,
			fmt.Errorf("containerd %q is not the absolute path of a socket, such as /run/containerd/containerd.sock",
				c.Containerd))
	}
	errs = append(errs, c.validateEviction()...)
	if _, err := c.ShutdownPeriods(); err != nil {
		errs = append(errs, err)
	}
	if len(c.Join) > maxJoin {
		errs = append(errs, fmt.Errorf("join names %d servers: at most %d", len(c.Join), maxJoin))
	}
	for _, server := range c.Join {
		if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			errs = append(errs, fmt.Errorf("join %q is not a URL of the form https://server:6443", server))
		}
	}
	if c.Token != "" && c.TokenFile != "" {
		errs = append(errs, errors.New("token and token-file are both given: leave one out"))
	}
	return errors.Join(errs...)
}

func directory(option, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
		return fmt.Errorf("%s %q must be an absolute path of a directory of its own", option, path)
	}
	return nil
}

func within(option, path, other, parent string) error {
	if rel, err := filepath.Rel(parent, path); err == nil && (rel == "." || !strings.HasPrefix(rel, "..")) {
		return fmt.Errorf("%s %q lies within %s %q: give each a directory of its own", option, path, other, parent)
	}
	return nil
}

func oneOf(option, value string, values ...string) error {
	if !slices.Contains(values, value) {
		return fmt.Errorf("%s %q is not one of %s", option, value, strings.Join(values, ", "))
	}
	return nil
}

func listen(option, value string) error {
	host, port, ok := cutPort(value)
	if _, err := netip.ParseAddrPort("127.0.0.1:" + port); !ok || err != nil {
		return fmt.Errorf("%s %q is not of the form address:port", option, value)
	}
	if host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Errorf("%s %q: %q is not an IP address", option, value, host)
		}
	}
	return nil
}

func cutPort(value string) (host, port string, ok bool) {
	i := strings.LastIndexByte(value, ':')
	if i < 0 {
		return "", "", false
	}
	return strings.Trim(value[:i], "[]"), value[i+1:], true
}

func cidr(option, value string, shortest, longest int) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(value)
	switch {
	case err != nil || !p.Addr().Is4():
		return p, fmt.Errorf("%s %q is not an IPv4 range of the form 10.42.0.0/16", option, value)
	case p.Masked() != p:
		return p, fmt.Errorf("%s %q has bits beyond its length: you may mean %s", option, value, p.Masked())
	case p.Bits() < shortest || p.Bits() > longest:
		return p, fmt.Errorf("%s %q must have a length of %d to %d bits", option, value, shortest, longest)
	}
	return p, nil
}

func (c *Common) options(f *pflag.FlagSet) {
	f.StringVar(&c.DataDir, "data-dir", "/var/lib/coracle", "directory of all state")
	f.StringVar(&c.RunDir, "run-dir", "/run/coracle", "directory of state that need not survive a reboot")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", "text", "text, or json: one object per line")
}

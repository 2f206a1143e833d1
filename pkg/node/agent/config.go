package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/host/shutdown"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Config of an Agent.
type Config struct {
	// Client has the node's identity. Its cache may hold only what a node may see.
	Client  client.Interface
	Runtime runtime.Runtime
	Network network.Network
	// Policies enforces network policies; nil if nothing does.
	Policies pod.Policies

	NodeName string
	NodeIP   netip.Addr
	// Labels and Annotations are set on the node in addition to those that others set; Taints only when the node is
	// created.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// VerifyNode, if not nil, returns an error for an existing Node that another machine registered. The agent then ends.
	VerifyNode func(*corev1.Node) error

	// DataDir/pods/UID contains each pod's files. RunDir need not survive a reboot. LogDir contains the containers' logs.
	DataDir, RunDir, LogDir string

	// PluginDir is where CSI drivers and device plugins find the agent, as the kubelet's /var/lib/kubelet. PluginLink
	// becomes a link to it if nothing else is there. An empty PluginDir disables plugins.
	PluginDir, PluginLink string

	// CgroupRoot is the parent cgroup of all pods, the same as the runtime's; default "/coracle".
	CgroupRoot string

	// ClusterCIDR is the range of all nodes' pods, ServiceCIDR the range of services. Pod ranges of nodes that do not
	// fit are refused. An invalid prefix does not restrict them.
	ClusterCIDR, ServiceCIDR netip.Prefix

	ClusterDNS    []netip.Addr
	ClusterDomain string // default cluster.local
	ResolvConf    string // default /etc/resolv.conf
	MaxPods       int    // default 110
	// AllowedUnsafeSysctls are sysctls, or prefixes that end in "*", that pods may set in addition to the safe ones.
	AllowedUnsafeSysctls []string
	SeccompDir           string // of the profiles that pods name; default DataDir/seccomp

	// Eviction are the eviction thresholds; the zero value means config.DefaultThresholds.
	Eviction eviction.Policy
	// Machine measures the machine's resources; nil disables eviction.
	Machine eviction.Machine
	// Shutdown are the periods in which pods end when the machine shuts down, ordered by priority; none disables that.
	Shutdown []config.ShutdownPeriod
	// Logind connects to systemd-logind; default shutdown.Connect.
	Logind func(context.Context) (shutdown.Logind, error)
	// Reserved resources are not allocatable to pods.
	Reserved config.Reserved
	// Unused images are removed when ImageGCHigh percent of the image filesystem are in use, until ImageGCLow are. Default
	// 85 and 80.
	ImageGCHigh, ImageGCLow int

	// CredentialConfig is the configuration of credential provider plugins, whose programs are in CredentialBinDir; empty
	// means that there are none.
	CredentialConfig, CredentialBinDir string

	// Probes restricts the hosts that probes and hooks of pods may name.
	Probes probe.Guard

	// ManifestDir is the folder of static pods' manifests; empty means that there are none. DecodeManifest decodes one,
	// see static.Config.
	ManifestDir    string
	DecodeManifest func(data []byte, complete func(*corev1.Pod) error) (*corev1.Pod, error)
	// Before are closed when services and their names work. Pods of the API are not started before; static pods are.
	Before []<-chan struct{}

	// OnPodCIDR is called with the node's pod range when it is known, before pods get addresses. It is nil if the network
	// needs none.
	OnPodCIDR func(context.Context, netip.Prefix) error

	// ListenAddress of the node's API; default ":10250".
	ListenAddress string
	// GetCertificate returns its serving certificate; nil disables the API (in tests).
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs gives the authorities whose client certificates the API accepts at present: the same pool until they
	// change. Nil: it asks for none.
	ClientCAs func() *x509.CertPool
	// Trusted reports whether a client certificate is allowed everything, such as the API server's. Others are authorized
	// by a SubjectAccessReview. Nil trusts the common name kube-apiserver-kubelet-client and the group system:masters.
	Trusted func(*x509.Certificate) bool

	// UserNamespaces returns why pods cannot have user namespaces, or nil. It may take some milliseconds, once. A nil
	// function means that they have none.
	UserNamespaces func() error

	// API sends requests to the API server for Parts; nil if they can send none.
	API part.API
	// Parts make what systems add to the agent.
	Parts []func(part.Host) part.Part

	// Recorder records events; nil means one that writes them through Client.
	Recorder pod.Recorder
	Logger   *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
	// Metrics takes the agent's metrics; its API serves all that it holds. Nil makes one.
	Metrics *prometheus.Registry
}

// Validate sets defaults and returns an error for invalid fields.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("agent: "+what))
		}
	}
	need(c.Client != nil, "Client is missing")
	need(c.Runtime != nil, "Runtime is missing")
	need(c.Network != nil, "Network is missing")
	need(len(validation.IsDNS1123Subdomain(c.NodeName)) == 0,
		fmt.Sprintf("NodeName %q is not a DNS name in lower case", c.NodeName))
	need(c.NodeIP.IsValid(), "NodeIP is missing")
	for name, d := range map[string]string{"DataDir": c.DataDir, "RunDir": c.RunDir, "LogDir": c.LogDir} {
		need(filepath.IsAbs(d), fmt.Sprintf("%s %q is not an absolute path", name, d))
	}
	need(c.ManifestDir == "" || filepath.IsAbs(c.ManifestDir) && c.DecodeManifest != nil,
		"ManifestDir is not an absolute path, or DecodeManifest is missing")
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/coracle"
	}
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	need(c.MaxPods > 0, "MaxPods must be positive")
	if c.Eviction.Thresholds == nil {
		c.Eviction.Thresholds = config.DefaultThresholds()
	}
	if c.Eviction.Transition == 0 {
		c.Eviction.Transition = 5 * time.Minute
	}
	if c.Logind == nil {
		c.Logind = shutdown.Connect
	}
	if c.ImageGCHigh == 0 {
		c.ImageGCHigh, c.ImageGCLow = 85, 80
	}
	need(c.ImageGCLow < c.ImageGCHigh && c.ImageGCHigh <= 100,
		"ImageGCLow must be below ImageGCHigh, and that no more than 100")
	if c.ListenAddress == "" {
		c.ListenAddress = ":10250"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	return errors.Join(errs...)
}

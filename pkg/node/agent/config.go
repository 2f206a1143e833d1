package agent

import (
	"cmp"
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
	"github.com/coracle-dev/coracle/pkg/node/host/shutdown"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

// Config configures an Agent.
type Config struct {
	// A nil Recorder means to write events through Client, a nil Logger slog.Default().
	pod.Environment

	NodeIP netip.Addr
	// Labels and Annotations are added to the node's at each registration. Taints are set only when the node is
	// created.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// VerifyNode, if not nil, returns an error for an existing Node that another machine registered. Run then fails.
	VerifyNode func(*corev1.Node) error

	// PluginDir is the directory shared with CSI drivers and device plugins, like the kubelet's /var/lib/kubelet.
	// PluginLink becomes a symbolic link to it if that path is free. An empty PluginDir disables plugins.
	PluginDir, PluginLink string

	// ClusterCIDR is the range of all pods, ServiceCIDR the range of services. A node's pod range outside
	// ClusterCIDR, or overlapping ServiceCIDR, is refused. An invalid prefix disables its check.
	ClusterCIDR, ServiceCIDR netip.Prefix

	MaxPods int // default 110
	// AllowedUnsafeSysctls are sysctls, or prefixes ending in "*", allowed to pods in addition to the safe ones.
	AllowedUnsafeSysctls []string

	// Eviction holds the eviction thresholds; the zero value means config.DefaultThresholds.
	Eviction eviction.Policy
	// Machine measures the machine's resources; nil disables node-pressure eviction.
	Machine eviction.Machine
	// Shutdown holds the grace periods of pods during a shutdown of the machine, by pod priority in ascending order.
	// If empty, shutdowns do not wait for pods.
	Shutdown []config.ShutdownPeriod
	// Logind connects to systemd-logind; default shutdown.Connect.
	Logind func(context.Context) (shutdown.Logind, error)
	// Reserved is subtracted from the resources allocatable to pods.
	Reserved config.Reserved
	// LimitedSwap lets containers of Burstable pods use the machine's swap (KEP-2400).
	LimitedSwap bool
	// Unused images are removed at ImageGCHigh percent use of the image file system, down to ImageGCLow. Default 85,
	// 80.
	ImageGCHigh, ImageGCLow int

	// CredentialConfig is the configuration file of credential provider plugins, CredentialBinDir their directory; or
	// "".
	CredentialConfig, CredentialBinDir string

	// ManifestDir is the folder of static pods' manifests, or "". For DecodeManifest see static.Config.
	ManifestDir    string
	DecodeManifest func(data []byte, complete func(*corev1.Pod) error) (*corev1.Pod, error)
	// Before are channels that close when services and DNS work. Pods of the API wait for them; static pods do not.
	Before []<-chan struct{}

	// OnPodCIDR, if not nil, is called with the node's pod range when it is known. Pods get no addresses before.
	OnPodCIDR func(context.Context, netip.Prefix) error

	// ListenAddress is the address of the node's API; default ":10250".
	ListenAddress string
	// GetCertificate returns the API's serving certificate; nil disables the API (in tests).
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs returns the CAs for client certificates: the same pool until they change. Nil requests no certificates.
	ClientCAs func() *x509.CertPool
	// Trusted reports whether a client certificate, such as the API server's, may do everything. Other callers need
	// a SubjectAccessReview. Nil trusts the common name kube-apiserver-kubelet-client and the group system:masters.
	Trusted func(*x509.Certificate) bool

	// API sends requests to the API server for Parts; nil if they send none.
	API part.API
	// Parts create the extensions of other systems to the agent.
	Parts []func(part.Host) part.Part

	// Metrics registers the agent's metrics, and the node's API serves all metrics in it. Nil means a new registry.
	Metrics *prometheus.Registry
}

// Validate sets defaults. It returns an error for invalid fields.
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
	c.ClusterDomain = cmp.Or(c.ClusterDomain, "cluster.local")
	c.CgroupRoot = cmp.Or(c.CgroupRoot, "/coracle")
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	need(c.MaxPods > 0, "MaxPods must be positive")
	if c.Eviction.Thresholds == nil {
		c.Eviction.Thresholds = config.DefaultThresholds()
	}
	c.Eviction.Transition = cmp.Or(c.Eviction.Transition, 5*time.Minute)
	if c.Logind == nil {
		c.Logind = shutdown.Connect
	}
	if c.ImageGCHigh == 0 {
		c.ImageGCHigh, c.ImageGCLow = 85, 80
	}
	need(c.ImageGCLow < c.ImageGCHigh && c.ImageGCHigh <= 100,
		"ImageGCLow must be below ImageGCHigh, and ImageGCHigh at most 100")
	c.ListenAddress = cmp.Or(c.ListenAddress, ":10250")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	return errors.Join(errs...)
}

package pod

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// Recorder records events; events.Recorder implements it.
type Recorder interface {
	About(ref corev1.ObjectReference, kind, reason, format string, args ...any)
}

// Config configures a Manager. ResolvConf, Probes, SeccompDir, Sysctls, Pressures and Logger are optional.
type Config struct {
	Client   client.Interface
	Runtime  runtime.Runtime
	Network  network.Network
	Recorder Recorder
	Logger   *slog.Logger
	// Metrics registers the pods' metrics; may be nil.
	Metrics prometheus.Registerer

	NodeName, HostIP string
	// Pods' files are in DataDir/pods, volumes of API objects in RunDir/volumes (a tmpfs), container logs in LogDir.
	DataDir, RunDir, LogDir string
	// CgroupRoot is the parent cgroup of all pods.
	CgroupRoot    string
	ClusterDNS    []netip.Addr
	ClusterDomain string
	// ResolvConf is the path of the node's resolv.conf; default /etc/resolv.conf.
	ResolvConf string
	// SeccompDir contains the profiles for localhostProfile; default DataDir/seccomp.
	SeccompDir string
	// Probes restricts the hosts that probes and hooks may name.
	Probes probe.Guard
	// Sysctls are the sysctls that pods may set; nil allows the safe ones.
	Sysctls *Sysctls
	// MemoryCapacity is the node's memory in bytes.
	MemoryCapacity int64
	// Node returns this node's object, or nil while it is not registered.
	Node        func() *corev1.Node
	Allocatable func() corev1.ResourceList
	// AdmitBy returns the node that pods are admitted against, also before its registration; nil means Node.
	AdmitBy func() *corev1.Node
	// StaticEnded is called when nothing is left of a pod, static or not: Sync may have released a static pod of an
	// earlier process as an orphan. It is nil if there are no static pods.
	StaticEnded func(types.UID)
	// ShuttingDown reports whether the machine shuts down; then no pod is admitted and no container starts. May be nil.
	ShuttingDown func() bool
	// Pressures returns the node's pressure conditions that are True; nil means none.
	Pressures func() []corev1.NodeConditionType
	// Services returns the services of a namespace and default/kubernetes.
	Services func(ctx context.Context, namespace string) ([]*corev1.Service, error)
	// Credentials returns credentials for an image in addition to the pod's pull secrets; may be nil.
	Credentials func(ctx context.Context, p *corev1.Pod, image string) []keyring.Credential
	// NodesWith returns the other nodes that have an image; may be nil.
	NodesWith func(image string) []string
	// Devices assigns the devices of device plugins; nil if the node has no plugins.
	Devices *devices.Manager
	// Claims prepares the devices of resource claims; nil if the node has no DRA drivers.
	Claims        *dra.Manager
	VolumePlugins []volume.Plugin
	// Share makes a host path a shared mount, for volumes with mount propagation; may be nil.
	Share func(path string) error
	// Serves reports whether releasing other pods needs this pod, such as a CSI driver: Drain stops it last. May be
	// nil.
	Serves func(*corev1.Pod) bool
	// StaticPods makes Sync skip the pods that LeftStatic returns: a static.Manager starts or stops them later.
	StaticPods bool
	// UserNamespaces returns nil, or why pods cannot have user namespaces here; a nil function means unsupported.
	UserNamespaces func() error
	Parts          []part.Part
	// Policies may be nil.
	Policies   Policies
	Failpoints failpoint.Hook
}

// Policies enforces network policies; netpolicy.Enforcer implements it.
type Policies interface {
	// Setup returns once policies are enforced at the pod's address. It is called before containers start.
	Setup(ctx context.Context, p *corev1.Pod, ip string) error
	// Release is called once nothing of the pod runs any more.
	Release(p *corev1.Pod)
}

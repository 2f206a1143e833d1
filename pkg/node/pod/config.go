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

// Environment is what all pods of a node share. The agent's configuration includes it.
type Environment struct {
	// Client has the node's identity. Its cache may only hold objects that a node may read.
	Client  client.Interface
	Runtime runtime.Runtime
	Network network.Network
	// Policies enforces network policies; may be nil.
	Policies Policies
	Recorder Recorder
	Logger   *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook

	NodeName string
	// Pods' files are in DataDir/pods, volumes of API objects in RunDir/volumes (a tmpfs), container logs in LogDir.
	// RunDir need not survive a reboot.
	DataDir, RunDir, LogDir string
	// CgroupRoot is the parent cgroup of all pods and must match the runtime's; the agent's default is "/coracle".
	CgroupRoot string

	ClusterDNS    []netip.Addr
	ClusterDomain string // the agent's default is cluster.local
	ResolvConf    string // default /etc/resolv.conf
	SeccompDir    string // for localhostProfile; default DataDir/seccomp
	// Probes restricts the hosts that probes and hooks of pods may name.
	Probes probe.Guard
	// UserNamespaces returns nil, or why pods cannot have user namespaces; a nil function means unsupported. The first
	// call may take some milliseconds.
	UserNamespaces func() error
}

// Config configures a Manager. Metrics, Sysctls and Pressures are optional.
type Config struct {
	Environment
	// Metrics registers the pods' metrics; may be nil.
	Metrics prometheus.Registerer
	HostIP  string
	// BootID identifies the machine's boot; New reads the kernel's if it is empty.
	BootID string
	// Sysctls are the sysctls that pods may set; nil allows the safe ones.
	Sysctls *Sysctls
	// MemoryCapacity is the node's memory in bytes.
	MemoryCapacity int64
	// SwapCapacity is how much of the node's swap pods may use, in bytes.
	SwapCapacity int64
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
	Parts      []part.Part
}

// Policies enforces network policies; netpolicy.Enforcer implements it.
type Policies interface {
	// Setup returns once policies are enforced at the pod's address. It is called before containers start.
	Setup(ctx context.Context, p *corev1.Pod, ip string) error
	// Release is called once nothing of the pod runs any more.
	Release(p *corev1.Pod)
}

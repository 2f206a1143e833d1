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

// Config of a Manager. All fields are required but ResolvConf, Probes, SeccompDir, Sysctls, Pressures and Logger.
type Config struct {
	Client   client.Interface
	Runtime  runtime.Runtime
	Network  network.Network
	Recorder Recorder
	Logger   *slog.Logger
	// Metrics takes the metrics of pods; nil for none.
	Metrics prometheus.Registerer

	NodeName, HostIP string
	// Pods' files are in DataDir/pods, the tmpfs for volumes made of API objects is RunDir/volumes, and container logs are
	// in LogDir.
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
	// MemoryCapacity is the node's memory, in bytes.
	MemoryCapacity int64
	// Node returns this node's object, or nil while it is not registered.
	Node        func() *corev1.Node
	Allocatable func() corev1.ResourceList
	// AdmitBy returns the node by which pods are admitted, also while it is not registered; nil means Node.
	AdmitBy func() *corev1.Node
	// StaticEnded is called when nothing is left of a pod, static or not: what is left of a static pod may have been
	// released as that of an orphan. It is nil if there are no static pods.
	StaticEnded func(types.UID)
	// ShuttingDown reports whether the machine shuts down: nothing is started then, and no pod is admitted. Nil means
	// never.
	ShuttingDown func() bool
	// Pressures returns the node's pressure conditions that are True; nil means never any.
	Pressures func() []corev1.NodeConditionType
	// Services returns the services of a namespace and default/kubernetes.
	Services func(ctx context.Context, namespace string) ([]*corev1.Service, error)
	// Credentials returns the credentials for a pod's image that are in none of its pull secrets; nil if there are none.
	Credentials func(ctx context.Context, p *corev1.Pod, image string) []keyring.Credential
	// Devices assigns the devices of device plugins; nil if the node has none.
	Devices *devices.Manager
	// Claims has the devices of resource claims prepared; nil if the node has no drivers.
	Claims *dra.Manager
	// VolumePlugins handle further kinds of volumes.
	VolumePlugins []volume.Plugin
	// Share prepares a path of the host that is mounted with mount propagation; may be nil.
	Share func(path string) error
	// Serves reports whether a pod may serve plugins of the node, such as a CSI driver: others may need it until they have
	// been released. nil means none does.
	Serves func(*corev1.Pod) bool
	// StaticPods: Sync leaves alone the pods that LeftStatic returns; a static.Manager starts or stops them, possibly
	// later.
	StaticPods bool
	// UserNamespaces returns why pods cannot have user namespaces on this node, or nil; a nil function means that the node
	// has none.
	UserNamespaces func() error
	// Parts are what systems add to the lives of pods.
	Parts []part.Part
	// Policies enforces network policies; nil if nothing does.
	Policies Policies
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Policies enforces network policies; netpolicy.Enforcer implements it.
type Policies interface {
	// Setup returns when the policies that select the pod are enforced at its address. It is called once the pod's network
	// is up, before containers start.
	Setup(ctx context.Context, p *corev1.Pod, ip string) error
	// Release is called when nothing of the pod runs any longer.
	Release(p *corev1.Pod)
}

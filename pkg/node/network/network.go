// Package network sets up pods' namespaces and addresses with netlink: a veth pair per pod, a /32 address, routes,
// and masquerading of traffic that leaves the cluster.
//
// By default, a pod can send only from its own address (IPv6 is disabled on its link). It can reach all pods,
// services, the outside and, as in upstream, services on the node's own address, which the node's firewall may
// restrict. It cannot reach the node's loopback addresses, nor link-local addresses except for DNS: a cloud's metadata
// service hands the machine's credentials to any client (Config.MetadataAccess allows it). Pods
// with hostNetwork are not restricted. A pod cannot have a host port on which the node itself serves.
//
// Its invariant: after a crash, everything that Setup acquired can be found from the kernel and the run directory,
// and Teardown or Reset releases it.
package network

import (
	"context"
	"errors"
	"net/netip"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

// ErrNoUsers is returned by Setup for a pod that wants a user namespace on a node without any.
var ErrNoUsers = errors.New("no user namespaces on this node")

// ErrNoAddress is returned by Setup when the node has no free pod address, or no pod CIDR yet.
var ErrNoAddress = errors.New("no free pod address")

// Host stands for the node's own namespace in a Sandbox.
const Host = "host"

// Pod is the pod for which a sandbox is set up.
type Pod struct {
	UID, Namespace, Name string
	// Hostname and, if not empty, Domainname are set in the pod's UTS namespace.
	Hostname, Domainname string
	// HostNetwork pods use the node's network and UTS namespaces and get no address; HostIPC pods use the node's IPC
	// namespace.
	HostNetwork, HostIPC bool
	// OwnUsers pods get a user namespace, which owns the pod's other namespaces. They cannot use HostNetwork or
	// HostIPC.
	OwnUsers  bool
	HostPorts []HostPort
	// Sysctls are set in the pod's network and IPC namespaces.
	Sysctls map[string]string
}

// HostPort forwards a port of the node to the pod.
type HostPort struct {
	HostIP   netip.Addr // zero: all addresses of the node
	HostPort uint16
	PodPort  uint16
	Protocol string // TCP, UDP or SCTP
}

// Sandbox is a pod's set of namespaces, as bind-mounted paths, or Host. IP is zero for HostNetwork pods.
type Sandbox struct {
	UID                 string
	NetNS, IPCNS, UTSNS string
	// UserNS is empty for pods without a user namespace. IDs are the user namespace's IDs on the node.
	UserNS string
	IDs    userns.Range
	IP     netip.Addr
}

// Network sets up sandboxes. All methods may be repeated and are safe for concurrent use.
type Network interface {
	// Setup returns the pod's sandbox and creates what is missing. It returns ErrNoAddress if the range is
	// exhausted.
	Setup(ctx context.Context, p Pod) (Sandbox, error)
	// Teardown releases the sandbox. It succeeds if none exists.
	Teardown(ctx context.Context, uid string) error
	// List returns the existing sandboxes, including those from an earlier process.
	List(ctx context.Context) ([]Sandbox, error)
	// Enter runs f on a thread in the pod's network namespace, for example to dial its loopback address. Goroutines
	// that f starts are not in the namespace.
	Enter(ctx context.Context, uid string, f func() error) error
	// Routes replaces the routes to other nodes' pods; it maps pod CIDRs to node addresses.
	Routes(ctx context.Context, routes map[netip.Prefix]netip.Addr) error
	// Traffic returns the traffic of the pods that have a network of their own, by UID and as seen by the pod, and of the
	// node's interfaces without loopback and pods' links, first of the one that has the node's address.
	Traffic(ctx context.Context) (pods map[string]Traffic, node []Traffic, err error)
}

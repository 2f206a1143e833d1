// Package network gives pods their namespaces and addresses with netlink
// alone: a veth pair per pod, a /32 address, routes, and masquerade to the outside.
//
// What a pod may do by default: send from its own address and no other (IPv6 is off on its link); reach all pods, services,
// the outside and, as in upstream, what the node serves on its own address, which is for the node's firewall to say. It may not
// reach the node's loopback, nor by TCP a link-local address other than for DNS: a cloud's metadata service gives
// whoever asks the machine's credentials, and a tenant's pod is not the machine (Config.MetadataAccess allows it).
// Pods with hostNetwork are the node, and restricted in nothing. A pod gets no host port on which the node itself serves.
//
// It may import netlink, nftables and agent/failpoint. Its invariant:
// whatever Setup acquired is found again after a crash from the kernel and
// from files in the run directory, and Teardown or Reset releases it.
package network

import (
	"context"
	"errors"
	"net/netip"
)

// ErrNoAddress is returned by Setup when the node has no free pod address, or no pod CIDR yet.
var ErrNoAddress = errors.New("no free pod address")

// Host is what Sandbox gives for a namespace that is the node's own.
const Host = "host"

// Pod says what a pod needs.
type Pod struct {
	UID, Namespace, Name string
	// Hostname and, if not empty, Domainname are set in the pod's UTS namespace.
	Hostname, Domainname string
	// HostNetwork pods use the node's network and UTS namespaces and get no address; HostIPC
	// pods use the node's IPC namespace.
	HostNetwork, HostIPC bool
	HostPorts            []HostPort
	// Sysctls are set in the network and IPC namespaces.
	Sysctls map[string]string
}

// HostPort forwards a port of the node to the pod.
type HostPort struct {
	HostIP   netip.Addr // zero: all
	HostPort uint16
	PodPort  uint16
	Protocol string // TCP, UDP or SCTP
}

// Sandbox is a pod's set of namespaces, as bind-mounted paths, or Host. IP is zero for HostNetwork pods.
type Sandbox struct {
	UID                 string
	NetNS, IPCNS, UTSNS string
	IP                  netip.Addr
}

// Network makes sandboxes. All methods may be called from many goroutines, and repeated.
type Network interface {
	// Setup returns the pod's sandbox, making what is missing of it. ErrNoAddress when the range is used up.
	Setup(ctx context.Context, p Pod) (Sandbox, error)
	// Teardown releases the sandbox; unknown is no error.
	Teardown(ctx context.Context, uid string) error
	// List finds the sandboxes that exist, also those of an earlier process.
	List(ctx context.Context) ([]Sandbox, error)
	// Enter runs f on a thread that is in the pod's network namespace, for example to dial its
	// loopback. f must not start goroutines that count on the namespace.
	Enter(ctx context.Context, uid string, f func() error) error
	// Node tells of the routes to other nodes' pods: CIDR -> that node's address. It replaces the whole set.
	Routes(ctx context.Context, routes map[netip.Prefix]netip.Addr) error
}

// Package netpolicy enforces NetworkPolicies (networking.k8s.io/v1) on nodes, in an nftables table of its own.
//
// On a server, a Resolver turns policies, namespaces and pods into the Rules of each node, which contain only
// addresses and ports. A node's Enforcer writes them to the kernel, and delays the containers of a new pod until its
// rules are in place. A node learns the addresses that its own pods may talk to, and nothing else about other nodes'
// pods.
//
// As in upstream's contract, both ends must allow a connection, and replies are always allowed. A pod can reach
// itself, and it and its node can always reach each other (probes, DNS, the node's Ingress). Other traffic of
// isolated pods is rejected with an ICMP message. A change does not end existing connections.
//
// Its invariants: a table changes in one transaction; while no server can be reached, and after the process ends,
// the last rules stay in force; without policies there is neither a table nor work; a namespace whose policies
// exceed its limits allows nothing.
package netpolicy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Rules are the policies that one node enforces. Names of chains and sets derive from their content or selectors;
// equal names of chains and blocks mean equal content.
type Rules struct {
	// Version changes whenever anything else in Rules does.
	Version string `json:"version"`
	// Active is false if the cluster has no policy. Then everything else is empty.
	Active bool `json:"active"`
	// Pods are all pods of the node that have a network of their own, including pods that no policy selects.
	Pods []Pod `json:"pods,omitempty"`
	// Chains are lists of allowed connections, by name. Connections that match no rule are rejected.
	Chains map[string][]Rule `json:"chains,omitempty"`
	// Addresses are sets of pods, Blocks sets of address ranges, and Endpoints sets of pods with a port, by name.
	Addresses map[string][]netip.Addr  `json:"addresses,omitempty"`
	Blocks    map[string][]Range       `json:"blocks,omitempty"`
	Endpoints map[string][]Destination `json:"endpoints,omitempty"`
}

// Pod is a pod of the node and the chains for connections to and from it. An empty name means that the pod is not
// isolated in that direction.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Address is the address in the pod's status, or the zero Addr if it has none yet.
	Address netip.Addr `json:"address,omitzero"`
	Ingress string     `json:"ingress,omitempty"`
	Egress  string     `json:"egress,omitempty"`
}

// Rule allows connections that match all of its fields.
type Rule struct {
	// Addresses, Blocks and Endpoints name a set that must contain the peer; at most one is set. Endpoints match the
	// destination with its port.
	Addresses string `json:"addresses,omitempty"`
	Blocks    string `json:"blocks,omitempty"`
	Endpoints string `json:"endpoints,omitempty"`
	// Protocol is the IP protocol number of TCP, UDP or SCTP; 0 is any protocol and port.
	Protocol byte `json:"protocol,omitempty"`
	// From and To are the first and last port.
	From uint16 `json:"from,omitempty"`
	To   uint16 `json:"to,omitempty"`
}

// Range is a range of addresses, both ends included.
type Range struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
}

// Destination is an address with a port and protocol.
type Destination struct {
	Protocol byte           `json:"protocol"`
	Address  netip.AddrPort `json:"address"`
}

// Source provides the rules of nodes.
type Source interface {
	// Next returns the rules of a node as soon as their version differs from after. Pass "" at first.
	Next(ctx context.Context, node, after string) (*Rules, error)
}

// encode sets the version and returns the rules as JSON. It encodes only once, because rules may take many
// megabytes.
func (r *Rules) encode() []byte {
	const noVersion, before = "00000000000000000000", `{"version":"`
	r.Version = noVersion
	data := encoded(r)
	r.Version = digestOf(data)
	copy(data[len(before):], r.Version)
	return data
}

func digest(content any) string { return digestOf(encoded(content)) }

func encoded(content any) []byte {
	data, err := json.Marshal(content)
	if err != nil {
		panic(err) // cannot fail: text and numbers only
	}
	return data
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:10])
}

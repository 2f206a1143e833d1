// Package netpolicy enforces NetworkPolicies (networking.k8s.io/v1) on nodes, in an nftables table of its own.
//
// Servers resolve selectors: a Resolver turns policies, namespaces and pods into the Rules of one node, which names
// addresses and ports only. A node's Enforcer writes them into the kernel, and lets no container of a new pod start
// before its rules are there. So a node learns the addresses its own pods may reach or be reached from, and nothing
// else about pods of other nodes.
//
// As upstream's contract has it: pods that no policy selects are not restricted; both ends must allow a connection,
// replies are always allowed; a pod can reach itself, and it and its own node can always reach each other (probes, DNS,
// the Ingress of that node). What is not allowed is rejected with an ICMP message, so that clients need not wait for a
// timeout. A change does not end connections that exist.
//
// Its invariants: a node's table is replaced or changed in one transaction; while a server cannot be reached the last
// rules stay in force, also when the process ends; without any policy there is neither a table nor work; the policies
// of a namespace take a limited time and room, and those that need more allow nothing.
package netpolicy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Rules are what one node enforces. Chains and sets are named by their content or origin, so that equal names mean
// equal chains.
type Rules struct {
	// Version changes when anything else does.
	Version string `json:"version"`
	// Active is false if there is no policy in the cluster. Then everything else is empty.
	Active bool `json:"active"`
	// Pods are those of the node that have a network of their own, also the ones that no policy selects.
	Pods []Pod `json:"pods,omitempty"`
	// Chains are lists of what is allowed, by name. What no rule matches is rejected.
	Chains map[string][]Rule `json:"chains,omitempty"`
	// Addresses are sets of pods, Blocks of ranges, and Endpoints of pods with a port, by name.
	Addresses map[string][]netip.Addr  `json:"addresses,omitempty"`
	Blocks    map[string][]Range       `json:"blocks,omitempty"`
	Endpoints map[string][]Destination `json:"endpoints,omitempty"`
}

// Pod is a pod of the node and the chains for connections to and from it; an empty name means that it is not isolated.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Address is the one in the pod's status. The zero Addr: it has none yet.
	Address netip.Addr `json:"address,omitzero"`
	Ingress string     `json:"ingress,omitempty"`
	Egress  string     `json:"egress,omitempty"`
}

// Rule allows what matches all of its fields.
type Rule struct {
	// Addresses, Blocks and Endpoints name a set in which the peer must be; at most one is set. Endpoints are the
	// destination with its port.
	Addresses string `json:"addresses,omitempty"`
	Blocks    string `json:"blocks,omitempty"`
	Endpoints string `json:"endpoints,omitempty"`
	// Protocol is TCP, UDP or SCTP as IP numbers them; 0 is any, with all ports.
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

// Destination is an address with a port.
type Destination struct {
	Protocol byte           `json:"protocol"`
	Address  netip.AddrPort `json:"address"`
}

// Source gives the rules of nodes.
type Source interface {
	// Next returns the rules of a node as soon as their version is another than after, which is empty at first.
	Next(ctx context.Context, node, after string) (*Rules, error)
}

// encode sets the version, and returns the rules as JSON. They may take many megabytes, which are encoded once.
func (r *Rules) encode() []byte {
	const noVersion, before = "00000000000000000000", `{"version":"`
	r.Version = noVersion
	data := encoded(r)
	r.Version = digestOf(data)
	copy(data[len(before):], r.Version)
	return data
}

// digest is a name for content.
func digest(content any) string { return digestOf(encoded(content)) }

func encoded(content any) []byte {
	data, err := json.Marshal(content)
	if err != nil {
		panic(err) // text and numbers
	}
	return data
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:10])
}

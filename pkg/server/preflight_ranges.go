package server

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/node/agent"
)

// outsideRanges returns an error if the node's address, by default the default route's, is an address of the cluster's
// pods or services. That is so in a pod of another cluster with the same ranges: packets to the node would stay in the
// node.
func outsideRanges(node, pods, services string) error {
	ip, err := netip.ParseAddr(node)
	if node == "" {
		ip, err = outwardAddress()
	}
	if err != nil {
		return nil //nolint:nilerr // another check reports it
	}
	for _, r := range []struct{ option, cidr string }{{"cluster-cidr", pods}, {"service-cidr", services}} {
		if p, err := netip.ParsePrefix(r.cidr); err == nil && p.Contains(ip) {
			return fmt.Errorf("this machine's address %s is in --%s %s, as in a pod of another cluster: choose other ranges, "+
				"such as --cluster-cidr 10.142.0.0/16 --service-cidr 10.143.0.0/16", ip, r.option, r.cidr)
		}
	}
	return nil
}

// sameRange returns an error if the pod range that this node has is not in the cluster's range pods. Nodes keep their
// ranges, so the node would wait without an end.
func sameRange(dataDir, pods string) error {
	own, err := agent.StoredRange(filepath.Join(dataDir, "agent"))
	cluster, err2 := netip.ParsePrefix(pods)
	if err != nil || err2 != nil || cluster.Contains(own.Addr()) {
		return nil //nolint:nilerr // a first start, or another check reports it
	}
	return fmt.Errorf("--cluster-cidr %s does not contain %s, the range of this node's pods: start with the range "+
		"that the cluster was created with; a running cluster cannot change it", pods, own)
}

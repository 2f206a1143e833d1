package server

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/dns"
	"github.com/coracle-dev/coracle/pkg/node/host/socket"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

// alone returns an error if another cluster on this machine, running or stopped, has addresses of this one or the port
// of its DNS: of each address, only one of the two clusters would get the packets.
func alone(c config.Config, clusterCIDR, serviceCIDR string) error {
	pods, err1 := netip.ParsePrefix(clusterCIDR)
	services, err2 := netip.ParsePrefix(serviceCIDR)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	others, err := network.Neighbours(instance(c), pods, services)
	if err != nil {
		return err
	}
	for _, o := range others {
		var ranges []string
		for _, r := range o.Ranges {
			ranges = append(ranges, r.String())
		}
		return fmt.Errorf("the cluster of %s on this machine has the addresses %s: remove it (coracle delete --data-dir "+
			"DIRECTORY), or start this one with other ranges (--cluster-cidr, --service-cidr), an address of its own "+
			"(--node-ip) and other ports (--listen, --agent-listen, --ingress-http-port, --ingress-https-port)", o.Owner,
			strings.Join(ranges, " and "))
	}
	ip, err := netip.ParseAddr(c.NodeIP)
	if c.NodeIP == "" {
		ip, err = outwardAddress()
	}
	if err != nil {
		return nil //nolint:nilerr // reported by preflight
	}
	at := dns.Address(ip)
	for protocol, name := range map[byte]string{unix.IPPROTO_UDP: "UDP", unix.IPPROTO_TCP: "TCP"} {
		if socket.InUse(protocol, at) {
			return fmt.Errorf("%s %s, where this node serves DNS, is in use by a process of this machine, such as another "+
				"cluster: end it, or give this node an address of its own with --node-ip", name, at)
		}
	}
	return nil
}

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/client"
)

// Config configures New and Reset. Reset needs only Prefix.
type Config struct {
	Client   client.Interface
	NodeName string
	// NodeIP is the node's IPv4 address. Node ports are served on it, and masqueraded clients get it as their
	// source.
	NodeIP netip.Addr
	// NodePortAddresses are served for node ports in addition to NodeIP and 127.0.0.1. Through 127.0.0.1 only pods
	// on this node are reachable.
	NodePortAddresses []netip.Addr
	// ServiceCIDR is the first range of cluster IPs; ServiceCIDR objects add more. ClusterCIDR is the range of all
	// pods. If ClusterCIDR is not set, externalTrafficPolicy Local treats pods as clients from outside the cluster.
	ServiceCIDR, ClusterCIDR netip.Prefix
	// Local maps services, such as the cluster's DNS, to the address on this node that serves them instead of
	// endpoints.
	Local map[types.NamespacedName]netip.AddrPort
	// Ports are the ports on which nodes themselves serve (API, agent, DNS). No service gets them on a node's
	// address. Port 22 (SSH) is always included.
	Ports []uint16
	// Metrics registers the proxy's metrics; it may be nil.
	Metrics prometheus.Registerer
	Prefix  string       // prefix of the nftables table's name; default "coracle"
	Logger  *slog.Logger // default slog.Default()
}

// Validate sets defaults and checks all fields.
func (c *Config) Validate() error {
	if err := c.fill(); err != nil {
		return err
	}
	switch {
	case c.Client == nil:
		return errors.New("proxy: no client given")
	case c.NodeName == "":
		return errors.New("proxy: no node name given")
	case !c.NodeIP.Is4() || c.NodeIP.IsLoopback() || c.NodeIP.IsUnspecified():
		return fmt.Errorf("proxy: node address %s must be an IPv4 address that pods can reach", c.NodeIP)
	case c.ServiceCIDR.IsValid() && !c.ServiceCIDR.Addr().Is4(), c.ClusterCIDR.IsValid() && !c.ClusterCIDR.Addr().Is4():
		return fmt.Errorf("proxy: service CIDR %s and cluster CIDR %s must be IPv4", c.ServiceCIDR, c.ClusterCIDR)
	}
	return nil
}

func (c *Config) fill() error {
	c.Prefix = cmp.Or(c.Prefix, "coracle")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if !prefixSyntax.MatchString(c.Prefix) {
		return fmt.Errorf("proxy: name prefix %q must match %s", c.Prefix, prefixSyntax)
	}
	return nil
}

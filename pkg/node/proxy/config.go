package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/client"
)

// Config of New and Reset. Reset needs Prefix only.
type Config struct {
	Client   client.Interface
	NodeName string
	// NodeIP is the node's IPv4 address, on which node ports are served and as which clients from outside are masqueraded.
	NodeIP netip.Addr
	// NodePortAddresses are additional addresses for node ports, besides NodeIP and 127.0.0.1. The latter reaches only
	// pods on this node.
	NodePortAddresses []netip.Addr
	// ServiceCIDR is the first range of cluster IPs, of which ServiceCIDR objects are more, and ClusterCIDR that of all
	// nodes' pods. If ClusterCIDR is invalid, pods are treated as outside of the cluster for externalTrafficPolicy Local.
	ServiceCIDR, ClusterCIDR netip.Prefix
	// Local services are served by this node at the given address instead of by endpoints, such as the cluster's DNS.
	Local map[types.NamespacedName]netip.AddrPort
	// Ports are those on which the nodes themselves serve (the API, the agent, DNS): no service gets them on a node's
	// address. 22 (SSH) is always included.
	Ports []uint16
	// Metrics registers the proxy's metrics; it may be nil.
	Metrics prometheus.Registerer
	Prefix  string       // of the nftables table's name; default "coracle"
	Logger  *slog.Logger // default slog.Default()
}

// Validate sets defaults and returns an error for invalid fields.
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
	if c.Prefix == "" {
		c.Prefix = "coracle"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if !prefixSyntax.MatchString(c.Prefix) {
		return fmt.Errorf("proxy: name prefix %q must match %s", c.Prefix, prefixSyntax)
	}
	return nil
}

package network

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

// Users gives pods user namespaces; userns.Manager implements it.
type Users interface {
	// Take gives a range of IDs to a pod, or returns the one that it has. Keep is for those of an earlier process.
	Take(uid string) (userns.Range, error)
	Keep(uid string, r userns.Range)
	Release(uid string)
	// Start starts a process in a user namespace with these IDs, and in a network, an IPC and a UTS namespace that
	// belong to it. end ends it.
	Start(userns.Range) (pid int, end func(), err error)
}

// Config of New and Reset. Reset needs RunDir and Prefix only.
type Config struct {
	// RunDir is where namespaces are mounted and pods are recorded. It need not survive a reboot.
	RunDir string
	// NodeIP is the node's IPv4 address, on an interface of this machine.
	NodeIP netip.Addr
	// ServiceCIDR is exempt from masquerading. An invalid prefix means none.
	ServiceCIDR netip.Prefix
	// PodCIDR is this node's range of pod addresses, /2 to /30. If it is invalid, SetPodCIDR sets it later.
	PodCIDR netip.Prefix
	// Prefix is the prefix of the names of nftables tables and links, and determines the metric of routes; default
	// "coracle". Those of two installations on one machine must differ, and neither may begin with the other. Of one
	// with more than seven characters links have a hash.
	Prefix string
	// OwnPorts are served by the node itself (its agent, the API) and are refused as host ports. 22 (SSH) is always
	// refused.
	OwnPorts []uint16
	// MetadataAccess allows pods to connect to link-local addresses, where clouds serve the machine's credentials.
	MetadataAccess bool
	// Users gives pods user namespaces; nil means that they can have none.
	Users  Users
	Logger *slog.Logger // default slog.Default()
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

func (c *Config) fill() error {
	if c.Prefix == "" {
		c.Prefix = "coracle"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.RunDir == "" || !filepath.IsAbs(c.RunDir) {
		return fmt.Errorf("run directory %q must be an absolute path", c.RunDir)
	}
	if !prefixSyntax.MatchString(c.Prefix) {
		return fmt.Errorf("name prefix %q must match %s", c.Prefix, prefixSyntax)
	}
	return nil
}

// Validate sets defaults and returns an error for invalid fields.
func (c *Config) Validate() error {
	if err := c.fill(); err != nil {
		return err
	}
	if !c.NodeIP.Is4() || c.NodeIP.IsLoopback() || c.NodeIP.IsUnspecified() {
		return fmt.Errorf("node address %s must be an IPv4 address that pods can reach", c.NodeIP)
	}
	if c.PodCIDR.IsValid() {
		if err := checkPodCIDR(c.PodCIDR); err != nil {
			return err
		}
	}
	if c.ServiceCIDR.IsValid() && !c.ServiceCIDR.Addr().Is4() {
		return fmt.Errorf("service CIDR %s must be IPv4", c.ServiceCIDR)
	}
	return nil
}

func checkPodCIDR(p netip.Prefix) error {
	if !p.IsValid() || !p.Addr().Is4() || p.Bits() < 2 || p.Bits() > 30 || p.Masked() != p {
		return fmt.Errorf("pod CIDR %s must be an IPv4 prefix of /2 to /30, such as 10.42.0.0/24", p)
	}
	return nil
}

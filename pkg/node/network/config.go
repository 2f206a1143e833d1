package network

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

// Users allocates user namespaces for pods; userns.Manager implements it.
type Users interface {
	// Take allocates a range of IDs to a pod, or returns the one it has. Keep records a range that an earlier
	// process allocated.
	Take(uid string) (userns.Range, error)
	Keep(uid string, r userns.Range)
	Release(uid string)
	// Start starts a process in a new user namespace with these IDs, and in new network, IPC and UTS namespaces that
	// it owns. Call end to stop the process.
	Start(userns.Range) (pid int, end func(), err error)
}

// Config configures New and Reset. Reset needs only RunDir and Prefix.
type Config struct {
	// RunDir holds the namespace mounts and the pods' records. It need not survive a reboot.
	RunDir string
	// NodeIP is the node's IPv4 address, on an interface of this machine.
	NodeIP netip.Addr
	// ServiceCIDR is exempt from masquerading. An invalid prefix means none.
	ServiceCIDR netip.Prefix
	// PodCIDR is this node's range of pod addresses, /2 to /30. If it is not set, call SetPodCIDR later.
	PodCIDR netip.Prefix
	// Prefix begins the names of nftables tables and links, and determines the metric of routes; default "coracle".
	// Two installations on one machine need different prefixes, neither a prefix of the other. In link names a hash
	// replaces a Prefix of more than seven characters.
	Prefix string
	// Owner is written into the table, so that other installations can name this one: the path of the data directory.
	Owner string
	// OwnPorts are the ports that the node itself serves (agent, API). Setup refuses them as host ports, and always
	// port 22 (SSH).
	OwnPorts []uint16
	// MetadataAccess allows pods to connect to link-local addresses, where clouds serve the machine's credentials.
	MetadataAccess bool
	// MaxConnections limits the open connections that a pod began, of all protocols; 0 means no limit.
	MaxConnections int
	// Users allocates user namespaces for pods. If it is nil, Setup refuses pods that want one.
	Users Users
	// Metrics registers the number of pods that reached MaxConnections; it may be nil.
	Metrics prometheus.Registerer
	Logger  *slog.Logger // default slog.Default()
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

func (c *Config) fill() error {
	c.Prefix = cmp.Or(c.Prefix, "coracle")
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

// Validate sets defaults and checks all fields.
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

package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/agent/failpoint"
)

// Config of New and Reset. Reset needs RunDir and Prefix only.
type Config struct {
	// RunDir is where namespaces are mounted and pods are recorded; a reboot may lose it.
	RunDir string
	// NodeIP is the node's IPv4 address, on an interface of this machine. Pods see the node under it.
	NodeIP netip.Addr
	// ServiceCIDR is reached by pods with their own addresses. May be invalid: none.
	ServiceCIDR netip.Prefix
	// PodCIDR is this node's range of pod addresses, /2 to /30. If invalid, SetPodCIDR gives it later.
	PodCIDR netip.Prefix
	// Prefix begins the names of nftables tables and links, and gives routes their metric; default "coracle". Two installations on one machine need
	// two prefixes that differ in their first seven characters.
	Prefix string
	// OwnPorts are served by the node itself (its agent, the API): no pod gets them as host ports. SSH's, 22, is always one.
	OwnPorts []uint16
	// MetadataAccess lets pods connect to link-local addresses, where clouds serve the credentials of the machine.
	MetadataAccess bool
	Logger         *slog.Logger // default slog.Default()
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

var prefixSyntax = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

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

// Validate fills in defaults and says what is wrong.
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

const portSSH = 22

// Net is the Network on netlink and nftables.
type Net struct {
	Config
	mtu  int
	pool *pool
	nat  *nat

	mu      sync.Mutex // held in memory only, never over I/O
	pods    map[string]record
	busy    map[string]chan struct{} // one Setup or Teardown at a time for a UID
	podCIDR netip.Prefix
	routes  map[netip.Prefix]netip.Addr

	ranges sync.Mutex // one change of podCIDR and routes at a time

	ready chan struct{}
	once  sync.Once // closes ready
}

var _ Network = (*Net)(nil)

// New takes up what an earlier process left in RunDir and prepares the node: forwarding, table, routes. It
// changes nothing about pods that run. Close closes its sockets, and leaves all in place.
func New(c Config) (*Net, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(c.RunDir, "ns"), 0o755); err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	n := &Net{Config: c, pool: newPool(), ready: make(chan struct{}), busy: map[string]chan struct{}{}, pods: map[string]record{}}
	if n.mtu, err = uplink(h, c.NodeIP); err != nil {
		return nil, err
	}
	found, err := c.records()
	if err != nil {
		return nil, err
	}
	if found != nil {
		n.pods = found
	}
	n.pool.setPrefix(c.PodCIDR)
	for _, uid := range sortedKeys(n.pods) {
		if ip := n.pods[uid].IP; ip.IsValid() {
			n.pool.take(ip, uid)
		}
	}
	if err := c.keepSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return nil, err
	}
	if n.routes, err = c.routesOf(h); err != nil {
		return nil, err
	}
	if n.nat, err = newNAT(c.Prefix); err != nil {
		return nil, err
	}
	if err := n.nat.replace(&n.Config, n.pods, c.PodCIDR, n.clusterPrefixes()); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if c.PodCIDR.IsValid() {
		if err := n.SetPodCIDR(context.Background(), c.PodCIDR); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// Close closes the sockets. Pods, routes and rules stay.
func (n *Net) Close() error { return n.nat.conn.CloseLasting() }

// lock waits until no other call works on the UID.
func (n *Net) lock(ctx context.Context, uid string) (unlock func(), err error) {
	if uid == "" || strings.ContainsAny(uid, "/\x00") || uid[0] == '.' {
		return nil, fmt.Errorf("pod UID %q cannot be a file name", uid)
	}
	for {
		n.mu.Lock()
		wait, taken := n.busy[uid]
		if !taken {
			mine := make(chan struct{})
			n.busy[uid] = mine
			n.mu.Unlock()
			return func() {
				n.mu.Lock()
				delete(n.busy, uid)
				n.mu.Unlock()
				close(mine)
			}, nil
		}
		n.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (n *Net) get(uid string) (record, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, ok := n.pods[uid]
	return r, ok
}

func (n *Net) put(uid string, r *record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r == nil {
		delete(n.pods, uid)
	} else {
		n.pods[uid] = *r
	}
}

// Setup implements Network. What fails is undone, so that it can be repeated.
func (n *Net) Setup(ctx context.Context, p Pod) (Sandbox, error) {
	unlock, err := n.lock(ctx, p.UID)
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	for _, port := range p.HostPorts {
		if port.HostPort == portSSH || slices.Contains(n.OwnPorts, port.HostPort) {
			return Sandbox{}, fmt.Errorf("network of pod %s/%s: host port %d is the node's own: it is served by SSH or by a part of the cluster", p.Namespace, p.Name, port.HostPort)
		}
	}
	r, known := n.get(p.UID)
	if known && r.Ready && n.whole(p.UID, r) {
		return n.sandbox(p.UID, r), nil
	}
	if known {
		// A crash came before Setup returned, or the machine restarted: nothing runs in what is left.
		if err := n.teardown(p.UID, r, true); err != nil {
			return Sandbox{}, err
		}
	}
	r, err = n.setup(p)
	if err != nil {
		return Sandbox{}, fmt.Errorf("network of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return n.sandbox(p.UID, r), nil
}

func (n *Net) setup(p Pod) (r record, err error) {
	r = record{HostNet: p.HostNetwork, HostIPC: p.HostIPC}
	if p.HostNetwork {
		p.HostPorts = nil
	} else if r.IP, err = n.pool.get(p.UID); err != nil {
		return r, err
	}
	n.put(p.UID, &r)
	defer func() {
		if err != nil {
			err = errors.Join(err, n.teardown(p.UID, r, false))
		}
	}()
	if err := n.Failpoints.At("network.address"); err != nil {
		return r, err
	}
	if err := os.Mkdir(n.dir(p.UID), 0o755); err != nil {
		return r, err
	}
	if err := n.Failpoints.At("network.dir"); err != nil {
		return r, err
	}
	if err := n.save(p.UID, r); err != nil {
		return r, err
	}
	if err := n.Failpoints.At("network.record"); err != nil {
		return r, err
	}
	if !p.HostNetwork || !p.HostIPC {
		if err := onThread(func() error { return n.make(p, r.IP) }); err != nil {
			return r, err
		}
	}
	// The record gets the host ports only now, so that a conflict does not take them from who has them. After a
	// crash before that, New has made the table anew without them.
	with := r
	with.HostPorts = p.HostPorts
	if err := n.Failpoints.At("network.linked"); err != nil {
		return r, err
	}
	if err := n.nat.hostPorts(with, true); err != nil {
		return r, err
	}
	r = with
	if err := n.Failpoints.At("network.host-ports"); err != nil {
		return r, err
	}
	if err := forgetUDP(r); err != nil {
		return r, err
	}
	r.Ready = true
	if err := n.save(p.UID, r); err != nil {
		return r, err
	}
	n.put(p.UID, &r)
	return r, n.Failpoints.At("network.ready")
}

// make makes the namespaces and the link. It is called on a thread that ends with it.
func (n *Net) make(p Pod, ip netip.Addr) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	hostNS, err := threadNet()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(hostNS) }()
	if err := n.unshare(p.UID, p); err != nil {
		return err
	}
	if !p.HostNetwork {
		podNS, err := threadNet()
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(podNS) }()
		if err := n.connect(host, hostNS, podNS, p.UID, ip, n.mtu); err != nil {
			return err
		}
		if err := podDefaults(); err != nil {
			return err
		}
	}
	return setSysctls(p)
}

// podDefaults lets processes that are not root use low ports and ping inside their pod, as containerd and cri-o do.
func podDefaults() error {
	for path, value := range map[string]string{
		"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
		"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
	} {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// whole tells whether a sandbox that was ready still is. It is not after a reboot.
func (n *Net) whole(uid string, r record) bool {
	s := n.sandbox(uid, r)
	for _, path := range []string{s.NetNS, s.IPCNS, s.UTSNS} {
		if path != Host && !bound(path) {
			return false
		}
	}
	return true
}

// Teardown implements Network. The link goes with the namespace, which the kernel frees once no process is in it.
func (n *Net) Teardown(ctx context.Context, uid string) error {
	unlock, err := n.lock(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	r, known := n.get(uid)
	if !known {
		return nil
	}
	return n.teardown(uid, r, false)
}

// teardown releases a sandbox. With keep the address stays the pod's.
func (n *Net) teardown(uid string, r record, keep bool) error {
	if err := n.nat.hostPorts(r, false); err != nil {
		return err
	}
	if err := n.Failpoints.At("network.ports-released"); err != nil {
		return err
	}
	if err := n.release(uid); err != nil {
		return err
	}
	if err := n.Failpoints.At("network.released"); err != nil {
		return err
	}
	if err := forgetUDP(r); err != nil {
		return err
	}
	n.put(uid, nil)
	if r.IP.IsValid() && !keep {
		n.pool.put(r.IP, uid)
	}
	return nil
}

// List implements Network. It also names those that a crash left half made: Setup completes and Teardown releases them.
func (n *Net) List(context.Context) ([]Sandbox, error) {
	n.mu.Lock()
	pods := maps.Clone(n.pods)
	n.mu.Unlock()
	all := make([]Sandbox, 0, len(pods))
	for _, uid := range sortedKeys(pods) {
		all = append(all, n.sandbox(uid, pods[uid]))
	}
	return all, nil
}

// Enter implements Network. For a HostNetwork pod f runs in the node's network namespace.
func (n *Net) Enter(_ context.Context, uid string, f func() error) error {
	r, known := n.get(uid)
	if !known {
		return fmt.Errorf("enter the network of pod %s: %w", uid, fs.ErrNotExist)
	}
	if r.HostNet {
		return f()
	}
	return onThread(func() error {
		if err := joinNet(n.sandbox(uid, r).NetNS); err != nil {
			return err
		}
		return f()
	})
}

// keepSysctl sets a sysctl of the node, and records what it was before for Reset.
func (c *Config) keepSysctl(name, value string) error {
	path := "/proc/sys/" + name
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old := strings.TrimSpace(string(data))
	if old == value {
		return nil
	}
	kept, err := c.keptSysctls()
	if err != nil {
		return err
	}
	if _, ok := kept[name]; !ok {
		kept[name] = old
		data, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.sysctlFile(), data, 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w (set it on the machine if coracle may not)", strings.ReplaceAll(name, "/", "."), value, err)
	}
	return nil
}

func (c *Config) sysctlFile() string { return filepath.Join(c.RunDir, "sysctls.json") }

func (c *Config) keptSysctls() (map[string]string, error) {
	kept := map[string]string{}
	data, err := os.ReadFile(c.sysctlFile())
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, fmt.Errorf("%s: %w", c.sysctlFile(), err)
	}
	return kept, nil
}

// clusterPrefixes are those besides our own pod CIDR that see pods by their own addresses.
func (n *Net) clusterPrefixes() []netip.Prefix {
	all := slices.Collect(maps.Keys(n.routes))
	if n.ServiceCIDR.IsValid() {
		all = append(all, n.ServiceCIDR)
	}
	return all
}

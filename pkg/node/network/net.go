package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/host/thread"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

var prefixSyntax = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

const portSSH = 22

// Net implements Network with netlink and nftables.
type Net struct {
	Config
	mtu  int
	pool *pool
	nat  *nat

	mu      sync.Mutex // not held during I/O
	pods    map[string]record
	busy    map[string]chan struct{} // UIDs with a Setup or Teardown in progress
	podCIDR netip.Prefix
	routes  map[netip.Prefix]netip.Addr

	ranges   sync.Mutex // serializes changes of podCIDR and routes
	sweeping sync.Mutex // serializes sweeps

	// links serializes the creation of links, which the kernel does one at a time anyway. Writes to disable_ipv6 do
	// not block on the kernel's RTNL lock but restart until it is free; with many pods at once that took a sixth of
	// the agent's CPU time.
	links sync.Mutex

	// Ready is closed once Run watches the routes.
	run.Readiness
}

var _ Network = (*Net)(nil)

// New loads the records that an earlier process left in RunDir and prepares the node: forwarding, nftables table,
// routes. It does not affect running pods. Close closes its sockets and leaves everything in place.
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
	n := &Net{
		Config: c,
		pool:   newPool(),
		busy:   map[string]chan struct{}{},
		pods:   map[string]record{},
	}
	up, err := uplink(h, c.NodeIP)
	if err != nil {
		return nil, err
	}
	// Pods' links have the uplink's MTU, except on loopback, whose MTU is larger than any other link's.
	if n.mtu = 1500; up.Attrs().Flags&net.FlagLoopback == 0 {
		n.mtu = up.Attrs().MTU
	}
	found, err := c.records()
	if err != nil {
		return nil, err
	}
	if found != nil {
		n.pods = found
	}
	n.pool.setPrefix(c.PodCIDR)
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		if ip := n.pods[uid].IP; ip.IsValid() {
			n.pool.take(ip, uid)
		}
		if r := n.pods[uid]; r.ownUsers() && c.Users != nil {
			c.Users.Keep(uid, r.Users)
		}
	}
	if err := c.setSysctl(forwarding, "1"); err != nil {
		return nil, err
	}
	if n.routes, err = c.routesOf(h); err != nil {
		return nil, err
	}
	if n.nat, err = newNAT(c.Prefix, c.Owner); err != nil {
		return nil, err
	}
	records := func() map[string]record { return n.pods }
	if err := n.nat.replace(&n.Config, records, c.PodCIDR, n.clusterPrefixes()); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if c.PodCIDR.IsValid() {
		if err := n.SetPodCIDR(context.Background(), c.PodCIDR); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	promauto.With(c.Metrics).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "coracle_pods_at_connection_limit",
		Help: "Pods of which the node refused connections in the last ten minutes, see --pod-max-connections.",
	}, func() float64 {
		limited, err := n.Limited()
		if err != nil {
			return math.NaN()
		}
		return float64(len(limited))
	})
	return n, nil
}

// Table returns the name of the nftables table.
func (n *Net) Table() string { return n.nat.table.Name }

// Rewrite writes the table again after another program removed it.
func (n *Net) Rewrite(context.Context) error {
	n.ranges.Lock()
	defer n.ranges.Unlock()
	n.mu.Lock()
	podCIDR, cluster := n.podCIDR, n.clusterPrefixes()
	n.mu.Unlock()
	records := func() map[string]record {
		n.mu.Lock()
		defer n.mu.Unlock()
		return maps.Clone(n.pods)
	}
	return n.nat.replace(&n.Config, records, podCIDR, cluster)
}

// Close closes the sockets. Pods, routes and rules stay.
func (n *Net) Close() error { return n.nat.conn.CloseLasting() }

// lock waits until no other Setup or Teardown of the UID is in progress.
func (n *Net) lock(ctx context.Context, uid string) (unlock func(), err error) {
	if uid == "" || strings.ContainsAny(uid, "/\x00") || uid[0] == '.' {
		return nil, fmt.Errorf("pod UID %q cannot be a file name", uid)
	}
	for {
		n.mu.Lock()
		wait, taken := n.busy[uid]
		if !taken {
			done := make(chan struct{})
			n.busy[uid] = done
			n.mu.Unlock()
			return func() {
				n.mu.Lock()
				delete(n.busy, uid)
				n.mu.Unlock()
				close(done)
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

// Setup implements Network. On failure it releases everything it acquired.
func (n *Net) Setup(ctx context.Context, p Pod) (Sandbox, error) {
	unlock, err := n.lock(ctx, p.UID)
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	if p.HostNetwork {
		p.HostPorts = nil
	}
	for _, port := range p.HostPorts {
		if port.HostPort == portSSH || slices.Contains(n.OwnPorts, port.HostPort) {
			return Sandbox{}, fmt.Errorf("network of pod %s/%s: host port %d is reserved: SSH or a component of the cluster "+
				"serves it", p.Namespace, p.Name, port.HostPort)
		}
	}
	r, known := n.get(p.UID)
	if known && r.Ready && n.intact(p.UID, r) {
		return n.sandbox(p.UID, r), nil
	}
	if known {
		// The agent was killed during Setup, or the machine rebooted: no process uses the remains.
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
	if !p.HostNetwork {
		if r.IP, err = n.pool.get(p.UID); err != nil {
			return r, err
		}
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
	if r.IP.IsValid() {
		if err := n.sweep(r.IP); err != nil { // a kernel may lack the interface; the next pod tries again
			n.Logger.Warn("peers of a pod that ended may reach the new pod at its address", "address", r.IP, "error", err)
		}
	}
	for _, port := range p.HostPorts {
		if err := port.free(); err != nil {
			return r, err
		}
	}
	if p.OwnUsers {
		if r.Users, err = n.takeUsers(p); err != nil {
			return r, err
		}
		n.put(p.UID, &r)
		if err := n.Failpoints.At("network.users"); err != nil {
			return r, err
		}
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
		if err := thread.Run(func() error { return n.make(p, r) }); err != nil {
			return r, err
		}
	}
	// Record the host ports only if adding them succeeds. Otherwise cleaning up after a conflict would remove them
	// from the pod that has them. After a crash in between, New rebuilds the table without them.
	with := r
	with.HostPorts, with.Ready = p.HostPorts, true
	if err := n.Failpoints.At("network.linked"); err != nil {
		return r, err
	}
	if err := n.nat.hostPorts(with, true, func() { n.put(p.UID, &with) }); err != nil {
		return r, err
	}
	r = with
	if err := n.Failpoints.At("network.host-ports"); err != nil {
		return r, err
	}
	if err := forgetUDP(r); err != nil {
		return r, err
	}
	if err := n.save(p.UID, r); err != nil {
		return r, err
	}
	return r, n.Failpoints.At("network.ready")
}

// make creates the namespaces and the link. Run it on a thread of its own that ends with it.
func (n *Net) make(p Pod, r record) error {
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
	if r.ownUsers() {
		err = n.joinOwned(p.UID, r)
	} else {
		err = n.unshare(p.UID, p)
	}
	if err != nil {
		return err
	}
	if err := setNames(p); err != nil {
		return err
	}
	if !p.HostNetwork {
		podNS, err := threadNet()
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(podNS) }()
		if err := n.connect(host, hostNS, podNS, p.UID, r.IP); err != nil {
			return err
		}
		if err := podDefaults(); err != nil {
			return err
		}
	}
	return setSysctls(p, r.Users)
}

func (n *Net) takeUsers(p Pod) (userns.Range, error) {
	switch {
	case n.Users == nil:
		return userns.Range{}, ErrNoUsers
	case p.HostNetwork || p.HostIPC:
		return userns.Range{}, errors.New("a pod with a user namespace cannot share the node's network or IPC namespace")
	}
	return n.Users.Take(p.UID)
}

// intact reports whether the namespaces of a sandbox are still mounted. After a reboot they are not.
func (n *Net) intact(uid string, r record) bool {
	s := n.sandbox(uid, r)
	for _, path := range []string{s.NetNS, s.IPCNS, s.UTSNS, s.UserNS} {
		if path != "" && path != Host && !bound(path) {
			return false
		}
	}
	return true
}

// Teardown implements Network. The kernel removes the link together with the namespace, once no process is in it.
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

func (n *Net) teardown(uid string, r record, keepIP bool) error {
	if r.Ready {
		released := r
		released.Ready = false
		if err := n.nat.hostPorts(r, false, func() { n.put(uid, &released) }); err != nil {
			return err
		}
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
	if r.IP.IsValid() && !keepIP {
		n.pool.put(r.IP, uid)
	}
	if n.Users != nil {
		n.Users.Release(uid)
	}
	return nil
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
	return thread.Run(func() error {
		if err := join(n.sandbox(uid, r).NetNS, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// clusterPrefixes returns the prefixes, besides podCIDR, to which pods are not masqueraded. The caller holds n.mu.
func (n *Net) clusterPrefixes() []netip.Prefix {
	all := slices.Collect(maps.Keys(n.routes))
	if n.ServiceCIDR.IsValid() {
		all = append(all, n.ServiceCIDR)
	}
	return all
}

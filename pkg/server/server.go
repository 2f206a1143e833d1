// Package server assembles the components into processes: the control plane, a node, and both in one.
//
// Its invariant: components start in the order of the lists in this package, with the reason beside each, and stop
// in reverse order.
//
// A join token only allows a machine to join as a new node, until it expires or is revoked (pkg/base/jointoken).
// Its holder cannot act as an existing node, not even an offline one (machine.go), nor impersonate the API or
// another node (pki.Set.Node, nodes.go).
//
// A joined machine has only the permissions of its node (node authorizer, NodeRestriction). Deleting its Node
// excludes it at once and cancels its open requests (members.go): its agent exits, and the machine needs a token to
// come back. The server's own node cannot be excluded: it registers again at once.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/memory"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/client/servers"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

const (
	nodesGroup = "system:nodes"
)

func nodeUser(name string) string { return "system:node:" + name }

// RunServer runs the control plane and, if node is set, this machine's node, until ctx is done. Containers keep
// running.
func RunServer(ctx context.Context, c config.Config, node bool) error {
	return serveAgain(func() error { return runServer(ctx, c, node) })
}

func runServer(ctx context.Context, c config.Config, node bool) (err error) {
	report := reporter()
	defer func() { failure(report, err) }()
	if err := preflight(c, true, node); err != nil {
		return err
	}
	p, err := prepare(ctx, c)
	if err != nil {
		return err
	}
	defer p.close()
	if err := rememberNodeName(c.DataDir, p.NodeName); err != nil {
		return err
	}
	defer memory.BoundGarbage(p.memory())()
	keys, err := pki.Load(pkiDir(c.DataDir))
	if err != nil {
		return err
	}
	plane, err := newPlane(p, keys)
	if err != nil {
		return err
	}
	components := plane.components()
	if node {
		m, err := plane.membership()
		if err != nil {
			return err
		}
		n, err := newNode(p, m)
		if err != nil {
			return err
		}
		components = append(components, n.components()...)
		p.node, p.onReady = n, plane.markNode
	}
	p.plane = plane
	p.url, p.kubeconfig, p.store = plane.url, plane.kubeconfig, plane.store
	p.joinCommand = "coracle token create --print-join-command"
	return p.run(ctx, report, append(components, p.surroundings()...))
}

// RunAgent runs this machine as a node of the cluster with the servers c.Join, until ctx is done. Containers keep
// running.
func RunAgent(ctx context.Context, c config.Config) error {
	return serveAgain(func() error { return runAgent(ctx, c) })
}

func runAgent(ctx context.Context, c config.Config) (err error) {
	if len(c.Join) == 0 {
		return errors.New("--join is required, and a token if this machine has not joined yet: `coracle token create " +
			"--print-join-command` on the server prints the full command")
	}
	report := reporter()
	defer func() { failure(report, err) }()
	if err := preflight(c, false, true); err != nil {
		return err
	}
	p, err := prepare(ctx, c)
	if err != nil {
		return err
	}
	defer p.close()
	m, err := p.joinCluster(ctx)
	if err != nil {
		return err
	}
	if err := rememberNodeName(c.DataDir, p.NodeName); err != nil {
		return err
	}
	if err := alone(c, m.clusterCIDR.String(), m.serviceCIDR.String()); err != nil {
		return err
	}
	n, err := newNode(p, m)
	if err != nil {
		return err
	}
	p.node = n
	return p.run(ctx, report, append(append(m.remote, n.components()...), p.surroundings()...))
}

// process is the state of a server, agent or embedded control plane. accounts, authorities, store and plane are nil
// without a control plane, node is nil without a node.
type process struct {
	config.Config
	log     *slog.Logger
	metrics registries
	lock    *os.File
	began   time.Time
	nodeIP  netip.Addr

	// Only in an embedded control plane: listener replaces Listen, volatile skips fsync, and drain is
	// apiserver.Config.Drain.
	listener net.Listener
	volatile bool
	drain    time.Duration
	given    Given
	// onReady, if not nil, is called when all components are ready.
	onReady func(context.Context) error
	// started is closed after the start was reported. Writes that no client waits for begin then.
	started     chan struct{}
	accounts    *accountKeys
	authorities *authorities
	store       *store.Store
	plane       *plane
	// servers is nil unless this machine joined a cluster.
	servers                      *servers.List
	node                         *node
	url, kubeconfig, joinCommand string
	outward                      bool // the node's address is the default one

	// stop stops the process at once. run sets it.
	stop  context.CancelFunc
	parts parts
}

// prepare locks the data directory, claims the run directory, and determines the node's name and address.
func prepare(ctx context.Context, c config.Config) (*process, error) {
	if err := checkRunDir(ctx, c); err != nil { // before creating the data directory
		return nil, err
	}
	p := &process{Config: c, began: time.Now(), metrics: newRegistries(), started: make(chan struct{})}
	for _, dir := range []string{c.DataDir, c.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	p.Config = withoutLinks(c)
	lock, err := lock(c.DataDir)
	if err != nil {
		return nil, err
	}
	p.lock = lock
	if err := claimRunDir(p.Config); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	out := journal(boundedLog(os.Stderr, filepath.Join(c.DataDir, logFile)), os.Stderr)
	handler, err := logHandler(out, c.LogLevel, c.LogFormat)
	if err != nil {
		return nil, err
	}
	p.log = component(slog.New(handler), "server")
	quietLibraries(p.log)
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if p.NodeName, err = nodeName(c.DataDir, p.NodeName, hostname, p.log); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if p.NodeIP == "" {
		ip, err := outwardAddress()
		if err != nil {
			return nil, err
		}
		p.NodeIP, p.outward = ip.String(), true
	}
	p.nodeIP, err = netip.ParseAddr(p.NodeIP)
	return p, err
}

func (p *process) close() { _ = p.lock.Close() }

// outwardAddress returns the source address of the default route. It sends no packet.
func outwardAddress() (netip.Addr, error) {
	conn, err := net.Dial("udp4", "203.0.113.1:9")
	if err != nil {
		return netip.Addr{}, errors.New("cannot determine the node's address, this machine has no default route: set it " +
			"with --node-ip")
	}
	defer conn.Close()
	address, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return address.Addr(), err
}

// run runs the components. It reports each one that starts and, once all are ready, the status.
func (p *process) run(ctx context.Context, report func(socket.Event), components []run.Component) error {
	ctx, p.stop = p.lingering(ctx, true)
	defer p.stop()
	// The socket comes first, so that `coracle status` and `coracle stop` work during the start.
	components = append([]run.Component{socket.NewServer(p.RunDir, p)}, components...)
	p.parts.add(components)
	components = append(components, &last{notify: func(ctx context.Context) {
		if p.onReady != nil {
			if err := p.onReady(ctx); err != nil {
				p.log.Warn("could not label node as control plane", "error", err)
			}
		}
		p.forgetStart()
		status := p.Status(ctx)
		report(socket.Event{Done: true, Status: &status})
		close(p.started)
		p.log.Info("running", "url", status.Server, "after", time.Since(p.began).Round(time.Millisecond))
	}, settled: p.forgetStart})
	return run.All(ctx, run.Observer{
		Started: func(name string, took time.Duration) {
			p.parts.started(name, took)
			if name != lastName {
				report(socket.Event{Step: name, Took: took})
			}
			p.log.Debug("component started", "component", name, "took", took)
		},
		Stopped: func(name string, err error) {
			p.parts.stopped(name, err)
			p.log.Debug("component stopped", "component", name, "error", err)
		},
		Hung: hung(p.log),
	}, components...)
}

// hung logs a component that did not stop in time, with all stacks.
func hung(log *slog.Logger) func(name string, after time.Duration) {
	return func(name string, after time.Duration) {
		log.Error("component did not stop in time, abandoning it", "component", name, "after", after)
		dumpStacks(os.Stderr)
	}
}

// surroundings returns the components for what the process is a part of: the machine and its init system.
func (p *process) surroundings() []run.Component {
	c := newClock(component(p.log, "clock"))
	a := &address{was: p.nodeIP, log: component(p.log, "address")}
	again := func() bool { return c.step() != 0 || a.lost.Load() }
	all := []run.Component{&supervised{again: again, log: component(p.log, "systemd")}, c}
	if p.outward {
		all = append(all, a)
	}
	return all
}

func failure(report func(socket.Event), err error) {
	if err != nil {
		report(socket.Event{Error: err.Error()})
	}
}

const lastName = "running"

func (p *process) forgetStart() {
	if err := forgetStart(); err != nil {
		p.log.Warn("could not release start-up memory", "error", err)
	}
}

// last is the last component: when it starts, all others are ready.
type last struct {
	run.Readiness
	notify  func(context.Context)
	settled func() // called once, settling after the start; may be nil
}

// settling is the time after the start that deferred work and the controllers' first reconciles need.
const settling = 5 * time.Second

func (l *last) Name() string { return lastName }
func (l *last) Run(ctx context.Context) error {
	l.notify(ctx)
	l.SetReady()
	if l.settled != nil {
		after := time.NewTimer(settling)
		defer after.Stop()
		select {
		case <-after.C:
			l.settled()
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	return nil
}

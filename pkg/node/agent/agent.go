// Package agent is the node agent: it registers the machine as a node, runs the pods bound to it, and serves the
// node's API (logs, exec, port-forward).
//
// Invariant: after a kill, the next process finds every acquired resource in the runtime, the kernel and its
// directories. Running containers are not affected by a stop or start of the agent.
package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/node/api"
	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/host/shutdown"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/pkg/node/volume/csi"
)

// Agent is a run.Component.
type Agent struct {
	c   Config
	log *slog.Logger
	// Readiness is set when the node is registered, Ready, and accepts pods.
	run.Readiness
	pods     *pod.Manager
	eviction *eviction.Manager
	shutdown *shutdown.Manager // nil if machine shutdowns do not wait for pods
	parts    []part.Part
	recorder *events.Recorder
	machine  machine
	guard    run.Guard
	plugins  *plugins.Watcher // nil without plugins, like devices, claims and csi
	dir      plugins.Dir      // shared with the plugins
	devices  *devices.Manager
	claims   *dra.Manager
	csi      *csi.Manager
	static   *static.Manager // nil without ManifestDir
	share    func(path string) error
	serves   func(*corev1.Pod) bool
	known    chan struct{} // closed when the node is registered
	synced   chan struct{} // closed when all existing pods are known

	applying   sync.Mutex // held by applyRange
	mu         sync.Mutex
	node       *corev1.Node      // newest known version
	cidr       netip.Prefix      // the podCIDR that OnPodCIDR was last called with
	kept       bool              // OnPodCIDR was called with the stored range
	ranges     map[string]route  // pod ranges of all nodes, including ours
	refused    map[string]string // why ranges are not routed, by node
	network    bool              // pods can get addresses
	port       int32
	api        *api.Server   // nil until it listens
	nodeWake   chan struct{} // the node changed
	statusWake chan struct{}
	// servicesKnown is set when the cache has listed the services.
	servicesKnown atomic.Bool
	// nodeDeleted is set when this agent's Node is deleted, until it is registered again.
	nodeDeleted atomic.Bool
}

// New returns an Agent. Nothing runs before Run is called.
func New(c Config) (*Agent, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		c:          c,
		log:        c.Logger,
		known:      make(chan struct{}),
		synced:     make(chan struct{}),
		ranges:     map[string]route{},
		nodeWake:   make(chan struct{}, 1),
		statusWake: make(chan struct{}, 1),
	}
	a.guard = run.Guard{Log: c.Logger, Component: a.Name()}
	c.Metrics.MustRegister(a.guard.Metrics(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.network = c.OnPodCIDR == nil
	var err error
	if a.machine, err = readMachine(c.DataDir); err != nil {
		return nil, err
	}
	if c.Recorder == nil {
		a.recorder = events.New(c.Client, "kubelet", c.NodeName, a.log)
		c.Metrics.MustRegister(a.recorder.Metrics())
		c.Recorder = a.recorder
	}
	sysctls, err := pod.NewSysctls(c.AllowedUnsafeSysctls)
	if err != nil {
		return nil, fmt.Errorf("allowed-unsafe-sysctls: %w", err)
	}
	if err := a.openPlugins(); err != nil {
		return nil, err
	}
	credentials, err := a.openCredentials()
	if err != nil {
		return nil, err
	}
	host := a.host(c)
	for _, make := range c.Parts {
		a.parts = append(a.parts, make(host))
	}
	a.pods = pod.New(pod.Config{
		Environment: c.Environment, Parts: a.parts, Metrics: c.Metrics, HostIP: c.NodeIP.String(), Sysctls: sysctls,
		MemoryCapacity: a.machine.memory, SwapCapacity: a.swapForPods(),
		Node: a.registered, Allocatable: a.allocatable, Services: a.services,
		Pressures: a.pressures, ShuttingDown: a.shuttingDown, AdmitBy: a.admittingNode,
		StaticEnded: a.staticEnded, StaticPods: c.ManifestDir != "",
		Credentials: credentials, NodesWith: a.nodesWith,
		Devices: a.devices, Claims: a.claims, VolumePlugins: a.volumePlugins(), Share: a.share, Serves: a.serves,
	})
	a.eviction = eviction.New(eviction.Config{
		Policy: c.Eviction, Machine: c.Machine, Pods: a.pods, Changed: a.wakeStatus, Event: a.event,
		Beside: a.pods.LookAtVolumes, Logger: c.Logger,
	})
	if len(c.Shutdown) > 0 {
		a.shutdown = shutdown.New(shutdown.Config{
			Periods: c.Shutdown, Connect: c.Logind, Await: shutdown.Await, Pods: a.pods, Known: a.synced,
			Changed: a.shutdownChanged, Event: a.event,
			File: filepath.Join(c.DataDir, "shutdown.json"), Metrics: c.Metrics, Logger: c.Logger,
		})
	}
	if c.ManifestDir != "" {
		a.static = static.New(static.Config{
			Dir: c.ManifestDir, NodeName: c.NodeName, Decode: c.DecodeManifest, Pods: a.pods, Client: c.Client,
			Node: a.registered, Event: a.event, Logger: c.Logger,
		})
	}
	a.c = c
	return a, nil
}

// host returns what the agent provides to parts. They use it only after New.
func (a *Agent) host(c Config) part.Host {
	return part.Host{
		NodeName: c.NodeName, DataDir: c.DataDir, LogDir: c.LogDir, Enter: c.Network.Enter, API: c.API, Logger: c.Logger,
		Metrics: c.Metrics,
		Token:   func(ctx context.Context, p *corev1.Pod) (string, error) { return a.pods.Token(ctx, p) },
		ServeLog: func(w http.ResponseWriter, r *http.Request, log part.Log) {
			a.mu.Lock()
			s := a.api
			a.mu.Unlock()
			s.ServeLog(w, r, log) // not nil: it serves this request
		},
		VolumeDir: func(uid types.UID, volume string) string { return a.pods.VolumeDir(uid, volume) },
		Usage: func(ctx context.Context, uid types.UID, container string) (uint64, time.Duration, error) {
			return a.pods.PodUsage(ctx, uid, container)
		},
		Changed: func(uid types.UID) { a.pods.ConditionChanged(uid) },
		Event: func(p *corev1.Pod, kind, reason, message string) {
			about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
			c.Recorder.About(about, kind, reason, "%s", message)
		},
	}
}

// Name implements run.Component.
func (a *Agent) Name() string { return "agent" }

// Pods returns the pods of this node with their current status.
func (a *Agent) Pods() []*corev1.Pod { return a.pods.Pods() }

// Blocked returns the pods whose sandbox or volumes could not be set up.
func (a *Agent) Blocked() []pod.Blocked { return a.pods.Blocked() }

// StopPods stops the containers of all pods within their grace periods, and starts no more. The pods stay in the API
// for the next agent. ended is called with each pod that had a running container, once it has stopped.
func (a *Agent) StopPods(ctx context.Context, ended func(*corev1.Pod)) error {
	return a.pods.Drain(ctx, ended)
}

// Pressure describes the node's pressure conditions that are True, one per string.
func (a *Agent) Pressure() []string {
	kinds, why := a.eviction.Pressures()
	for i := range why {
		why[i] = string(kinds[i]) + ": " + why[i]
	}
	return why
}

func (a *Agent) pressures() []corev1.NodeConditionType {
	kinds, _ := a.eviction.Pressures()
	return kinds
}

func (a *Agent) event(kind, reason, message string) {
	a.c.Recorder.About(corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       a.c.NodeName,
		UID:        types.UID(a.c.NodeName),
	}, kind, reason, "%s", message)
}

// ReportRemovedTable records an event of the node: another program removed an nftables table, which is written again.
func (a *Agent) ReportRemovedTable(table, program string) {
	a.event(corev1.EventTypeWarning, "NetworkRulesRemoved",
		fmt.Sprintf("The program %q removed the nftables table %s, which is written again", program, table))
}

func (a *Agent) registered() *corev1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}

// Run implements run.Component.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, d := range []string{a.c.DataDir, a.c.RunDir, a.c.LogDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 5)
	spawn := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	if a.recorder != nil {
		spawn(func() error { a.guard.Loop(ctx, "events", a.recorder.Run); return nil })
	}
	if a.c.GetCertificate != nil {
		serve, err := a.listen()
		if err != nil {
			return err
		}
		spawn(func() error { return serve(ctx) })
	}
	if users := a.c.UserNamespaces; users != nil {
		spawn(func() error { // warm up: the result is cached for the node's status
			if err := users(); err != nil {
				a.log.Info("pods cannot have user namespaces on this node", "reason", err)
			}
			return nil
		})
	}
	for _, part := range a.parts {
		if err := part.Start(); err != nil {
			return err
		}
		defer part.Stop()
	}
	if err := a.pods.Start(ctx); err != nil {
		return err
	}
	a.eviction.Look()
	a.startShutdown(ctx, spawn)
	a.startStatic(ctx, spawn)
	spawn(a.pods.Wait)
	spawn(func() error { a.guard.Loop(ctx, "eviction", a.eviction.Run); return nil })
	spawn(func() (err error) {
		a.guard.Loop(ctx, "node", func(ctx context.Context) { err = a.runNode(ctx) })
		return err
	})
	spawn(func() error { return a.follow(ctx) })
	a.runPlugins(ctx, spawn)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// Limits on connections to the node's API. The API server opens one per proxied stream.
const (
	maxConnections           = 4096
	maxConnectionsPerAddress = 2048
)

func (a *Agent) listen() (func(context.Context) error, error) {
	l, err := net.Listen("tcp", a.c.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("the node's API cannot listen on %s: %w: stop the process that uses the port, or "+
			"choose another port", a.c.ListenAddress, err)
	}
	if t, ok := l.Addr().(*net.TCPAddr); ok {
		a.mu.Lock()
		a.port = int32(t.Port)
		a.mu.Unlock()
	}
	s := api.New(api.Config{
		Pods: a.pods, Parts: a.parts, Runtime: a.c.Runtime, Network: a.c.Network, Client: a.c.Client, LogDir: a.c.LogDir,
		Node: a.registered, NodeName: a.c.NodeName, Trusted: a.c.Trusted, Logger: a.log, Metrics: a.c.Metrics,
		Usage: a.eviction.Usage, Kubelet: a.kubeletConfiguration,
	})
	a.mu.Lock()
	a.api = s
	a.mu.Unlock()
	tlsConfig := &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: a.c.GetCertificate,
		NextProtos: []string{"http/1.1"},
	}
	if a.c.ClientCAs != nil {
		tlsConfig.ClientAuth = tls.VerifyClientCertIfGiven
		tlsConfig = pki.FollowClientCAs(tlsConfig, a.c.ClientCAs)
	}
	limited := connlimit.New(l, connlimit.Config{Most: maxConnections, Each: maxConnectionsPerAddress, Logger: a.log})
	return func(ctx context.Context) error { return s.Serve(ctx, tls.NewListener(limited, tlsConfig)) }, nil
}

// ResourceMetrics returns the response of /metrics/resource, or nil before the API listens.
func (a *Agent) ResourceMetrics(ctx context.Context) []byte {
	a.mu.Lock()
	s := a.api
	a.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.ResourceMetrics(ctx)
}

const (
	leasePeriod  = 10 * time.Second
	leaseSeconds = 40
	statusPeriod = 5 * time.Minute
)

// Package target connects Kontrol to its clusters: through a kubeconfig, through an agent, or in process. Each cluster
// has its own prober, back-off and limits, so that a failing cluster does not affect others.
//
// Its invariants: nothing in a kubeconfig runs a command or reads a file; answers of clusters are limited in size;
// and requests to an unreachable cluster fail at once until a probe has succeeded.
package target

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// patience is the timeout of requests other than watches.
	patience = 10 * time.Second
	// interval is the time between probes of a reachable cluster. An unreachable one is probed after retryFirst,
	// growing to retryMost, give or take half, since no event reports its return.
	interval   = 30 * time.Second
	retryFirst = time.Second
	retryMost  = 10 * time.Second
	// maxAnswer limits the answer to a request other than a watch, in bytes.
	maxAnswer = 64 << 20
	// maxEvent limits an event of a watch, in bytes: client-go reads a whole event before it applies its own limit of
	// the same size.
	maxEvent = 16 << 20
	// maxValues limits the JSON values of an answer or event: decoded, each takes some 100 bytes. A page of 250 pods has
	// 250,000.
	maxValues = 1_000_000
	// maxRequests limits the concurrent calls of Do for one cluster.
	maxRequests = 32
)

var errNoVersion = errors.New("the answer has no version")

// ErrBusy means that maxRequests calls are running for the cluster. The caller is notified when it may retry.
var ErrBusy = errors.New("the cluster is busy")

// Config says how to reach a cluster.
type Config struct {
	// Local is the client of the cluster that serves this API. It takes precedence over Kubeconfig.
	Local      client.WithWatch
	Kubeconfig []byte
	// Pull, if not nil, sends requests through the connection of the cluster's agent. Kubeconfig is ignored then.
	Pull http.RoundTripper
	// Problem, if not empty, says why no connection can be attempted, and Reason is its condition's reason.
	Reason, Problem string
}

// equal compares Local and Pull only with nil: their types need not be comparable, and a cluster has one of each.
func (c Config) equal(o Config) bool {
	return (c.Local == nil) == (o.Local == nil) && (c.Pull == nil) == (o.Pull == nil) &&
		bytes.Equal(c.Kubeconfig, o.Kubeconfig) && c.Reason == o.Reason && c.Problem == o.Problem
}

// Status describes the connection to a cluster.
type Status struct {
	Ready                            bool
	Reason, Message, Version, Server string
	Seen                             time.Time
	// Outage changes with each failed probe and each change of the configuration.
	Outage uint64
}

// Pool holds the connections to all clusters. It is safe for concurrent use.
type Pool struct {
	version string // Kubernetes version of the local cluster

	mu      sync.Mutex
	targets map[string]*Target
	notify  map[string]func(cluster string)
	outages uint64
}

// outage returns a new value of Status.Outage.
func (p *Pool) outage() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outages++
	return p.outages
}

// NewPool returns a pool without clusters. localVersion is the Kubernetes version of the cluster that serves this API.
func NewPool(localVersion string) *Pool {
	return &Pool{version: localVersion, targets: map[string]*Target{}, notify: map[string]func(string){}}
}

// Notify registers f, which is called without locks when a cluster's readiness, its reason, or its version changes. It
// replaces the function registered under the name.
func (p *Pool) Notify(name string, f func(cluster string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify[name] = f
}

// Set connects to a cluster, or reconnects if the configuration has changed. begin runs a function in a goroutine until
// its context ends.
func (p *Pool) Set(name string, c Config, begin func(func(context.Context))) {
	p.mu.Lock()
	old := p.targets[name]
	if old != nil && old.config.equal(c) && old.ended.Err() == nil {
		p.mu.Unlock()
		return
	}
	t := newTarget(name, c, p)
	p.outages++
	t.status.Outage = p.outages
	p.targets[name] = t
	p.mu.Unlock()
	if old != nil {
		old.end()
	}
	if c.Problem == "" && t.client != nil {
		begin(t.run)
	}
	p.changed(name)
}

// Remove ends the connection to a cluster.
func (p *Pool) Remove(name string) {
	p.mu.Lock()
	t := p.targets[name]
	delete(p.targets, name)
	p.mu.Unlock()
	if t != nil {
		t.end()
		p.changed(name)
	}
}

// Get returns a cluster; nil if there is none.
func (p *Pool) Get(name string) *Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.targets[name]
}

func (p *Pool) changed(name string) {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.notify))
	p.mu.Unlock()
	for _, f := range all {
		f(name)
	}
}

// Target is the connection to a cluster.
type Target struct {
	Name string

	pool   *Pool
	config Config
	client client.WithWatch
	probe  func(context.Context) (version string, err error)
	ended  context.Context
	cancel context.CancelFunc
	wake   chan struct{}

	mu      sync.Mutex
	status  Status
	doubted bool // a request was lost, and no probe has decided yet whether it is an outage
	running int
	waiting []waiter        // in the order of notification
	waits   map[string]bool // the keys in waiting
}

func newTarget(name string, c Config, p *Pool) *Target {
	ended, cancel := context.WithCancel(context.Background())
	t := &Target{
		Name: name, pool: p, config: c, ended: ended, cancel: cancel, wake: make(chan struct{}, 1), waits: map[string]bool{},
		status: Status{Reason: kontrol.ReasonConnecting, Message: "connecting"},
	}
	fail := func(reason, message string) *Target {
		t.status = Status{Reason: reason, Message: message}
		return t
	}
	if c.Problem != "" {
		return fail(c.Reason, c.Problem)
	}
	if c.Local != nil {
		t.client = c.Local
		t.status = Status{
			Ready:   true,
			Reason:  kontrol.ReasonConnected,
			Message: "this cluster serves the API",
			Version: p.version,
			Seen:    time.Now(),
		}
		t.probe = func(context.Context) (string, error) { return p.version, nil }
		return t
	}
	cfg, err := &rest.Config{Host: "http://agent", Transport: c.Pull}, error(nil)
	if c.Pull == nil {
		cfg, err = ParseKubeconfig(c.Kubeconfig)
	}
	if err != nil {
		return fail(kontrol.ReasonKubeconfigInvalid, "invalid kubeconfig: "+err.Error())
	}
	cfg.QPS, cfg.Timeout, cfg.UserAgent = -1, 0, "coracle-kontrol"
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return limited{next} })
	cfg.WarningHandler = rest.NoWarnings{}
	if t.status.Server = cfg.Host; c.Pull != nil {
		t.status.Server = "(its agent)"
	}
	httpClient, err := rest.HTTPClientFor(cfg)
	if err == nil {
		// A cluster must not send the hub to other servers, such as its own loopback address.
		httpClient.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		t.ended, t.cancel = ended, func() { cancel(); httpClient.CloseIdleConnections() }
		quick := *httpClient // discovery has no context
		quick.Timeout = patience
		mapper, err := apiutil.NewDynamicRESTMapper(cfg, &quick)
		if err == nil {
			t.client, err = client.NewWithWatch(cfg, client.Options{HTTPClient: httpClient, Mapper: mapper})
		}
		if err != nil {
			return fail(kontrol.ReasonKubeconfigInvalid, "invalid kubeconfig: "+err.Error())
		}
		d, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, &quick)
		if err != nil {
			return fail(kontrol.ReasonKubeconfigInvalid, "invalid kubeconfig: "+err.Error())
		}
		t.probe = func(ctx context.Context) (string, error) {
			raw, err := d.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Raw()
			if err != nil {
				return "", err
			}
			var v apimachineryversion.Info
			if err := json.Unmarshal(raw, &v); err != nil {
				return "", err
			}
			if v.GitVersion == "" {
				return "", errNoVersion
			}
			return bounded.Text(v.GitVersion, 64), nil
		}
		return t
	}
	return fail(kontrol.ReasonKubeconfigInvalid, "invalid kubeconfig: "+err.Error())
}

// limited limits the answers of a cluster, and each event of a watch.
type limited struct{ http.RoundTripper }

// WrappedRoundTripper lets client-go find the transport that cancels requests.
func (l limited) WrappedRoundTripper() http.RoundTripper { return l.RoundTripper }

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	bounded.AcceptJSON(req.Header) // the clients for typed objects and for metadata prefer protobuf
	res, err := l.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	watch, limit := req.URL.Query().Get("watch") != "", int64(maxAnswer)
	if watch {
		limit = maxEvent
	}
	if err := bounded.JSONAnswer(res, limit, maxValues, watch); err != nil {
		return nil, err
	}
	return res, nil
}

// run probes the cluster until its configuration changes or ctx ends.
func (t *Target) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, t.cancel)
	defer stop()
	defer t.cancel()
	again := backoff.Backoff{First: retryFirst, Most: retryMost, Jitter: true}
	for {
		version, err := t.probe(t.ended)
		if t.ended.Err() != nil {
			return
		}
		wait := interval
		if err != nil {
			t.failed(err)
			wait = again.Next()
		} else {
			again.Reset()
			t.reached(version)
		}
		timer := time.NewTimer(wait)
		select {
		case <-t.ended.Done():
			timer.Stop()
			return
		case <-t.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (t *Target) reached(version string) {
	t.mu.Lock()
	was := t.status
	message := "the cluster answers"
	if t.config.Local != nil {
		message = was.Message
	}
	t.status = Status{
		Ready:   true,
		Reason:  kontrol.ReasonConnected,
		Message: message,
		Version: version,
		Server:  was.Server,
		Seen:    time.Now(),
		Outage:  was.Outage,
	}
	t.doubted = false
	t.mu.Unlock()
	if !was.Ready || was.Version != version {
		t.pool.changed(t.Name)
	}
}

func (t *Target) failed(err error) {
	outage := t.pool.outage()
	t.mu.Lock()
	was, tell := t.status, t.doubted
	t.doubted = false
	t.lost(err)
	t.status.Outage = outage
	tell = tell || was.Ready || was.Reason != t.status.Reason
	t.mu.Unlock()
	if tell {
		t.pool.changed(t.Name)
	}
}

// doubt holds back requests to a cluster until a probe has decided whether it is reachable. A single request may be
// lost because of its content.
func (t *Target) doubt(err error) {
	t.mu.Lock()
	if t.status.Ready {
		t.doubted = true
		t.lost(err)
	}
	t.mu.Unlock()
	t.Probe()
}

// lost sets the status from an error. The caller holds the lock.
func (t *Target) lost(err error) {
	t.status.Ready = false
	t.status.Reason, t.status.Message = explain(err, t.status.Server)
}

// Status returns the current status.
func (t *Target) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// Done returns a channel that is closed when the connection is replaced or ends.
func (t *Target) Done() <-chan struct{} { return t.ended.Done() }

// Client returns the client for watches, which are not limited in number or time; nil if the cluster is unreachable.
func (t *Target) Client() client.WithWatch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.status.Ready {
		return nil
	}
	return t.client
}

// Probe wakes the prober.
func (t *Target) Probe() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

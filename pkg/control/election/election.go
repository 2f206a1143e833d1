// Package election elects the server that runs the reconcilers and the scheduler, with the Leases of
// kube-controller-manager and kube-scheduler. Upstream's components can take part in the same election.
//
// Its invariant: two processes never lead at the same time. Components of the leader write through a client that calls
// Check before each write, so that a process that resumes after a suspension, or whose components hang, does no harm.
//
// A server whose store has no other member is Alone. It leads at once, even if another Coracle server held the Lease,
// and holds the Lease for aloneSeconds without renewals. This is safe because no other Coracle server can be running:
// the only member locks its data directory exclusively and has no listener. When the store gains a member, the Lease is
// rewritten within RetryPeriod and renewed from then on. A new server ignores the long duration: it may lead after
// LeaseDuration without an observed renewal, and by then the old server renews the Lease or has stopped.
// Lease or has stopped.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

// The Leases of upstream's components, in kube-system.
const (
	Controllers = "kube-controller-manager"
	Scheduler   = "kube-scheduler"
)

// Upstream's defaults. A leader that cannot renew its Lease stops leading after at most RenewDeadline plus
// RetryPeriod, and must stop its components in the rest of LeaseDuration.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// Check fails during the last 1/marginPart of LeaseDuration, because clocks drift and writes take time.
	marginPart = 15
	// aloneSeconds is the duration of a Lease that is not renewed: one year.
	aloneSeconds = 365 * 24 * 3600
)

// ErrNotLeading means that this process does not lead, or no longer.
var ErrNotLeading = errors.New("this server is not the leader")

// ours is a part of the identities of Coracle servers that upstream's identities do not contain.
const ours = "_coracle-"

// Identity returns a server's identity: its node name and the ID of its store member, which is unique to its data
// directory.
func Identity(node string, member uint64) string { return fmt.Sprintf("%s%s%x", node, ours, member) }

// Config configures an Election.
type Config struct {
	// Client reads and writes the Lease. Required.
	Client client.Interface
	// Lease is the name of the Lease in kube-system: Controllers or Scheduler. Required.
	Lease string
	// Identity returns this process's identity. It is called at the start of each term. Required.
	Identity func() string
	// Alone reports whether no other server can be running. Nil means never. It is called often, so it must be fast.
	Alone func() bool
	// Sync waits until the client's cache shows all writes of the previous leader. Nil: it always does.
	Sync func(context.Context) error
	// Reached is called after each request for the Lease and says whether the API server answered. Optional.
	Reached func(answered bool)
	// LeaseDuration, RenewDeadline and RetryPeriod default to upstream's 15 s, 10 s and 2 s. LeaseDuration must be
	// whole seconds.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Metrics registers leader_election_master_status. Optional.
	Metrics prometheus.Registerer
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Election implements run.Election.
type Election struct {
	Config
	began   time.Time    // base of until, with a monotonic clock reading
	until   atomic.Int64 // when leadership ends without another renewal, in ns after began; 0: not leading
	leading atomic.Bool
}

var _ run.Election = (*Election)(nil)

// New creates an Election.
func New(c Config) (*Election, error) {
	if c.Client == nil || c.Lease == "" || c.Identity == nil {
		return nil, errors.New("election: Client, Lease and Identity are required")
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = leaseDuration, renewDeadline, retryPeriod
	}
	if c.LeaseDuration%time.Second != 0 {
		return nil, fmt.Errorf("election: LeaseDuration %s must be whole seconds", c.LeaseDuration)
	}
	if c.Alone == nil {
		c.Alone = func() bool { return false }
	}
	if c.Reached == nil {
		c.Reached = func(bool) {}
	}
	if c.Sync == nil {
		c.Sync = func(context.Context) error { return nil }
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	e := &Election{Config: c, began: time.Now()}
	if c.Metrics != nil {
		c.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "leader_election_master_status",
			Help: "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates " +
				"master. 'name' is the string used to identify the lease. Please make sure to group by name.",
			ConstLabels: prometheus.Labels{"name": c.Lease}}, func() float64 {
			if e.Leads() {
				return 1
			}
			return 0
		}))
	}
	return e, nil
}

// Leads reports whether this process leads and runs its components.
func (e *Election) Leads() bool { return e.leading.Load() }

// Check returns ErrNotLeading unless the last renewal is so recent that no other process can lead.
func (e *Election) Check() error {
	until := e.until.Load()
	if until == 0 || int64(time.Since(e.began)) > until && !e.Alone() {
		return ErrNotLeading
	}
	return nil
}

// renewed records a renewal whose write began at the given time.
func (e *Election) renewed(at time.Time) {
	e.until.Store(int64(at.Sub(e.began) + e.LeaseDuration - e.LeaseDuration/marginPart))
}

// Run implements run.Election. When it stops, it releases the Lease unless it is Alone, so that another process
// can lead at once.
func (e *Election) Run(ctx context.Context, lead func(context.Context) error, settled func()) error {
	// The event recorder outlives ctx, to record the end of the last term.
	late, stop := context.WithCancel(context.WithoutCancel(ctx))
	recorder := events.New(e.Client, e.Lease, "", e.Log)
	var background sync.WaitGroup
	background.Go(func() { recorder.Run(late) })
	defer background.Wait()
	defer stop()
	for ctx.Err() == nil {
		if err := e.term(ctx, &lock{e: e, identity: e.Identity(), events: recorder}, lead, settled); err != nil {
			return err
		}
	}
	return nil
}

// term campaigns until this process leads, and returns when it no longer leads or ctx is done.
func (e *Election) term(ctx context.Context, l *lock, lead func(context.Context) error, settled func()) error {
	// The Lease is renewed until the components have stopped.
	campaign, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	defer stop()
	elected := make(chan context.Context, 1)
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, Name: e.Lease, LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { elected <- term },
			OnStoppedLeading: func() { e.until.Store(0) },
			OnNewLeader: func(who string) {
				if who != "" && who != l.identity {
					e.Log.Info("another process leads", "lease", e.Lease, "leader", who)
				}
			},
		},
	})
	if err != nil {
		return err
	}
	l.standby = settled
	over := make(chan struct{})
	go func() {
		defer close(over)
		le.Run(campaign)
	}()
	var term context.Context
	select {
	case term = <-elected:
	case <-ctx.Done():
		stop()
		<-over
		return l.release(ctx, e.RenewDeadline) // it may have been elected just before ctx ended
	}
	if !e.Alone() {
		e.Log.Info("became leader", "lease", e.Lease, "identity", l.identity)
	}
	err = e.lead(ctx, term, lead)
	lost := term.Err() != nil
	stop()
	<-over
	switch {
	case err != nil: // components may still be running, so let the Lease expire
		return err
	case lost:
		e.Log.Warn("lost leadership", "lease", e.Lease)
		return nil
	}
	return l.release(ctx, e.RenewDeadline)
}

// lead calls the lead function after Sync, and cancels it when the term or ctx ends.
func (e *Election) lead(ctx, term context.Context, lead func(context.Context) error) error {
	own, cancel := context.WithCancel(term)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if err := e.Sync(own); err != nil {
		if own.Err() == nil {
			e.Log.Warn("could not catch up with the previous leader's writes", "lease", e.Lease, "error", err)
			wait := time.NewTimer(e.RetryPeriod)
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-own.Done():
			}
		}
		return nil
	}
	e.leading.Store(true)
	defer e.leading.Store(false)
	return lead(own)
}

func isOurs(identity string) bool { return strings.Contains(identity, ours) }

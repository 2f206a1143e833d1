// Package election decides which of several servers runs the reconcilers and the scheduler, by the Leases with which kube-controller-manager
// and kube-scheduler elect their leaders. An upstream component beside us takes part in the same election.
//
// It may import client, events and run. Its invariant: two processes never both lead. What acts for a leader writes through a client that
// asks Check before each write, so that a process that was suspended, or whose components hang, does no harm when it goes on.
//
// A server whose store has no other member is Alone: it leads at once, whoever of us held the Lease before, and it holds the Lease without
// renewing it, for aloneSeconds. That is safe because nobody else of us can be there: the one member of the store holds an exclusive lock on its
// data directory and has no listener. When the store gains a member, the Lease is written again within RetryPeriod, and renewed from then on.
// A new server does not believe the long duration: it may lead when it has seen no renewal for LeaseDuration, by then the old one either
// renews the Lease or has stopped.
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

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/events"
	"github.com/coracle-dev/coracle/pkg/run"
)

// The Leases of upstream's components, in kube-system.
const (
	Controllers = "kube-controller-manager"
	Scheduler   = "kube-scheduler"
)

// Upstream's defaults. A leader that could not renew its Lease stops after at most RenewDeadline and RetryPeriod, and has the rest of
// LeaseDuration for it.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// marginPart is the part of LeaseDuration for which Check fails before the Lease ends: clocks run differently, and writes take time.
	marginPart = 15
	// aloneSeconds is the duration of a Lease that is not renewed, in seconds: a year.
	aloneSeconds = 365 * 24 * 3600
)

// ErrNotLeading is what Check fails with.
var ErrNotLeading = errors.New("this server is not the leader")

// ours is what the identities of servers contain, and those of upstream's components do not.
const ours = "_coracle-"

// Identity is that of a server, from its node's name and the ID of its member of the store, which is its own for as long as its data directory.
func Identity(node string, member uint64) string { return fmt.Sprintf("%s%s%x", node, ours, member) }

// Config configures an Election.
type Config struct {
	// Client reads and writes the Lease. Required.
	Client client.Interface
	// Lease is its name, in kube-system: Controllers or Scheduler. Required.
	Lease string
	// Identity is this process's; it is called when the election begins. Required.
	Identity func() string
	// Alone reports whether no other server can be there; nil: one may. It is called often.
	Alone func() bool
	// Sync waits until the client's cache shows everything that an earlier leader has written; nil: it always does.
	Sync func(context.Context) error
	// LeaseDuration, RenewDeadline and RetryPeriod are upstream's if 0: 15 s, 10 s and 2 s. A LeaseDuration is of whole seconds.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Metrics registers leader_election_master_status; nil for none.
	Metrics prometheus.Registerer
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// Election implements run.Election.
type Election struct {
	Config
	began   time.Time    // until counts from here, by the monotonic clock
	until   atomic.Int64 // nanoseconds after began for which this process leads by its last renewal; 0: it does not lead
	leading atomic.Bool
}

var _ run.Election = (*Election)(nil)

// New makes an Election.
func New(c Config) (*Election, error) {
	if c.Client == nil || c.Lease == "" || c.Identity == nil {
		return nil, errors.New("election: Client, Lease and Identity are required")
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = leaseDuration, renewDeadline, retryPeriod
	}
	if c.LeaseDuration%time.Second != 0 {
		return nil, fmt.Errorf("election: LeaseDuration of %s: must be of whole seconds", c.LeaseDuration)
	}
	if c.Alone == nil {
		c.Alone = func() bool { return false }
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
			Help:        "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
			ConstLabels: prometheus.Labels{"name": c.Lease}}, func() float64 {
			if e.Leads() {
				return 1
			}
			return 0
		}))
	}
	return e, nil
}

// Leads reports whether this process leads, and its components run.
func (e *Election) Leads() bool { return e.leading.Load() }

// Check returns ErrNotLeading unless the last renewal of the Lease is recent enough for nobody else to lead.
func (e *Election) Check() error {
	until := e.until.Load()
	if until == 0 || int64(time.Since(e.began)) > until && !e.Alone() {
		return ErrNotLeading
	}
	return nil
}

// renewed notes that the Lease was renewed by a write that began at this time.
func (e *Election) renewed(at time.Time) {
	e.until.Store(int64(at.Sub(e.began) + e.LeaseDuration - e.LeaseDuration/marginPart))
}

// Run implements run.Election. Stopping, it gives the Lease up for another process to lead at once, unless it is Alone.
func (e *Election) Run(ctx context.Context, lead func(context.Context) error, settled func()) error {
	// Events outlive ctx by the end of the last term.
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

// term campaigns until this process leads, and leads until it does not any more, or ctx is done.
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
		return l.release(ctx, e.RenewDeadline) // it may have been elected just now
	}
	if !e.Alone() {
		e.Log.Info("became leader", "lease", e.Lease, "identity", l.identity)
	}
	err = e.lead(ctx, term, lead)
	lost := term.Err() != nil
	stop()
	<-over
	switch {
	case err != nil: // something may still act: the Lease ends by itself
		return err
	case lost:
		e.Log.Warn("lost leadership", "lease", e.Lease)
		return nil
	}
	return l.release(ctx, e.RenewDeadline)
}

// lead calls lead for the term, or until ctx is done.
func (e *Election) lead(ctx, term context.Context, lead func(context.Context) error) error {
	own, cancel := context.WithCancel(term)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if err := e.Sync(own); err != nil {
		if own.Err() == nil {
			e.Log.Warn("could not catch up with the former leader", "lease", e.Lease, "error", err)
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

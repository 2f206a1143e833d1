package shutdown

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

// world is a machine with a logind and pods in memory.
type world struct {
	*testing.T
	m      *Manager
	cancel context.CancelFunc
	done   chan struct{}
	began  time.Time

	mu     sync.Mutex
	state  State
	absent bool
	refuse error         // error of Connect
	asked  int           // number of calls of Connect
	bus    chan struct{} // closed once there is a system bus
	file   string
	dials  []*dialled
	held   int // number of inhibitors
	known  chan struct{}
	pods   []*corev1.Pod
	takes  map[string]time.Duration // time that a pod needs to end; others end at once
	log    []string                 // events with their times
}

type dialled struct {
	*world
	changed, lost chan struct{}
}

// machine runs f with a started Manager, in fake time.
func machine(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			T: t, state: State{Instance: "a", Delay: time.Minute}, known: make(chan struct{}), takes: map[string]time.Duration{},
			bus: make(chan struct{}), file: filepath.Join(t.TempDir(), "shutdown.json"),
			pods: []*corev1.Pod{podOf("one", nil), podOf("two", nil), podOf("critical", new(int32(2_000_000_000)))},
		}
		close(w.known)
		w.start()
		defer func() {
			w.end()
			require.Zero(t, w.held, "the inhibitor is released")
		}()
		f(w)
	})
}

func (w *world) start() {
	w.m = New(Config{
		Periods: []config.ShutdownPeriod{
			{Priority: 0, Period: 20 * time.Second}, {Priority: 2_000_000_000, Period: 10 * time.Second},
		},
		Connect: w.connect, Await: w.await, File: w.file, Metrics: prometheus.NewRegistry(), Pods: w, Known: w.known,
		Changed: func(down bool) { w.note("down %v", down) },
		Event:   func(_, reason, message string) { w.note("%s", reason) }, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(w.Context())
	w.cancel, w.done, w.began = cancel, make(chan struct{}), time.Now()
	go func() {
		defer close(w.done)
		w.m.Run(ctx)
	}()
	synctest.Wait()
}

func (w *world) end() {
	w.cancel()
	<-w.done
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...)+" "+time.Since(w.began).String())
}

func (w *world) happened() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.log
	w.log = nil
	return out
}

// set changes logind's state and signals it on all connections.
func (w *world) set(f func()) {
	w.mu.Lock()
	f()
	for _, d := range w.dials {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
	w.began = time.Now()
	w.mu.Unlock()
	synctest.Wait()
}

func (w *world) inhibitors() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

func (w *world) connects() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

func (w *world) await(ctx context.Context) error {
	select {
	case <-w.bus:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *world) connect(context.Context) (Logind, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if w.refuse != nil {
		return nil, w.refuse
	}
	d := &dialled{world: w, changed: make(chan struct{}, 1), lost: make(chan struct{})}
	w.dials = append(w.dials, d)
	return d, nil
}

func (d *dialled) Changed() <-chan struct{} { return d.changed }
func (d *dialled) Lost() <-chan struct{}    { return d.lost }
func (d *dialled) Close()                   {}

func (d *dialled) State(context.Context) (State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.absent {
		return State{}, ErrAbsent
	}
	return d.state, nil
}

func (d *dialled) Inhibit(context.Context) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.ShuttingDown {
		return nil, ErrInProgress
	}
	d.held++
	return closer(func() {
		d.note("released")
		d.mu.Lock()
		defer d.mu.Unlock()
		d.held--
	}), nil
}

type closer func()

func (c closer) Close() error { c(); return nil }

func (w *world) Pods() []*corev1.Pod { return w.pods }

func (w *world) Terminate(uid types.UID, by time.Time) <-chan struct{} {
	w.note("terminate %s by %s", uid, time.Until(by))
	done := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if takes, has := w.takes[string(uid)]; has {
		time.AfterFunc(takes, func() { close(done) })
	} else {
		close(done)
	}
	return done
}

func (w *world) Flush(context.Context) { w.note("flush") }

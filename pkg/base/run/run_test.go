package run

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type part struct {
	name  string
	ready chan struct{}
	fail  chan error
	stuck bool
	log   *log
}

type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (p *part) Name() string           { return p.name }
func (p *part) Ready() <-chan struct{} { return p.ready }
func (p *part) Run(ctx context.Context) error {
	p.log.add("+" + p.name)
	defer p.log.add("-" + p.name)
	if !p.stuck {
		close(p.ready)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-p.fail:
		return err
	}
}

func parts(names ...string) (*log, []*part, []Component) {
	l := &log{}
	var ps []*part
	var cs []Component
	for _, n := range names {
		p := &part{name: n, ready: make(chan struct{}), fail: make(chan error, 1), log: l}
		ps, cs = append(ps, p), append(cs, p)
	}
	return l, ps, cs
}

func TestStartsInOrderAndStopsInReverse(t *testing.T) {
	l, _, cs := parts("store", "cache", "api")
	ctx, cancel := context.WithCancel(t.Context())
	var started []string
	observe := Observer{Started: func(n string, _ time.Duration) {
		if started = append(started, n); len(started) == len(cs) {
			cancel()
		}
	}}
	done := make(chan error)
	go func() { done <- All(ctx, observe, cs...) }()
	require.NoError(t, <-done)
	require.Equal(t, []string{"+store", "+cache", "+api", "-api", "-cache", "-store"}, l.lines)
	require.Equal(t, []string{"store", "cache", "api"}, started)
}

func TestAFailureStopsTheRest(t *testing.T) {
	for _, err := range []error{errors.New("disk full"), nil} {
		l, ps, cs := parts("store", "cache")
		done := make(chan error)
		go func() { done <- All(t.Context(), Observer{}, cs...) }()
		<-ps[1].ready
		ps[0].fail <- err
		got := <-done
		require.ErrorContains(t, got, "store: ")
		if err != nil {
			require.ErrorIs(t, got, err)
		}
		require.True(t, slices.Contains(l.lines, "-cache"))
	}
}

func TestAFailureWhileStartingStopsWhatRuns(t *testing.T) {
	l, ps, cs := parts("store", "cache", "api")
	ps[1].stuck = true
	ps[1].fail <- errors.New("cannot decode")
	require.EqualError(t, All(t.Context(), Observer{}, cs...), "cache: cannot decode")
	require.Equal(t, []string{"+store", "+cache", "-cache", "-store"}, l.lines)
}

func TestTheEndWhileStarting(t *testing.T) {
	l, ps, cs := parts("store", "cache")
	ps[1].stuck = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, All(ctx, Observer{}, cs...))
	require.Equal(t, "-store", l.lines[len(l.lines)-1])
}

type deaf struct{ ready, release chan struct{} }

func (d *deaf) Name() string           { return "deaf" }
func (d *deaf) Ready() <-chan struct{} { return d.ready }
func (d *deaf) Run(context.Context) error {
	close(d.ready)
	<-d.release
	return nil
}

func TestAComponentThatIgnoresItsContextDoesNotKeepTheOthersFromStopping(t *testing.T) {
	for _, failure := range []error{nil, errors.New("disk full")} {
		synctest.Test(t, func(t *testing.T) {
			l, ps, cs := parts("store", "agent")
			d := &deaf{make(chan struct{}), make(chan struct{})}
			cs = slices.Insert(cs, 1, Component(d))
			ctx, cancel := context.WithCancel(t.Context())
			var hung []string
			done := make(chan error)
			go func() {
				done <- All(ctx,
					Observer{Hung: func(name string, after time.Duration) { hung = append(hung, name+" "+after.String()) }}, cs...)
			}()
			synctest.Wait()
			if failure == nil {
				cancel()
			} else {
				ps[1].fail <- failure
			}
			err := <-done
			cancel()
			var h *HungError
			require.ErrorAs(t, err, &h)
			require.Equal(t, []string{"deaf"}, h.Names)
			if failure != nil {
				require.ErrorIs(t, err, failure)
			}
			require.Equal(t, []string{"deaf 10s"}, hung)
			require.Equal(t, []string{"+store", "+agent", "-agent", "-store"}, l.lines)
			close(d.release)
		})
	}
}

func TestAStopIsBoundedHoweverManyComponentsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var cs []Component
		for range 12 {
			cs = append(cs, &deaf{make(chan struct{}), release})
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- All(ctx, Observer{}, cs...) }()
		synctest.Wait()
		cancel()
		began := time.Now()
		require.Error(t, <-done)
		require.Equal(t, stopAll+9*stopRest, time.Since(began))
		close(release)
	})
}

// TestTheNextStartBesideAComponentAside: only the last component waits for one that is marked Aside.
func TestTheNextStartBesideAComponentAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ps, cs := parts("store", "controllers", "agent", "last")
		ps[1].stuck = true
		cs[1] = Aside(cs[1])
		ctx, cancel := context.WithCancel(t.Context())
		took := map[string]time.Duration{}
		done := make(chan error)
		go func() {
			done <- All(ctx, Observer{Started: func(n string, d time.Duration) { took[n] = d }}, cs...)
		}()
		synctest.Wait()
		require.Equal(t, "+store", l.lines[0])
		require.ElementsMatch(t, []string{"+controllers", "+agent"}, l.lines[1:], "in either order")
		time.Sleep(time.Second)
		close(ps[1].ready)
		synctest.Wait()
		require.Equal(t, map[string]time.Duration{"store": 0, "controllers": time.Second, "agent": 0, "last": 0}, took)
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"-last", "-agent", "-controllers", "-store"}, l.lines[4:])
	})
}

// TestAFailureOfAComponentAside: the last component does not start.
func TestAFailureOfAComponentAside(t *testing.T) {
	l, ps, cs := parts("controllers", "agent", "last")
	ps[0].stuck = true
	cs[0] = Aside(cs[0])
	done := make(chan error)
	go func() { done <- All(t.Context(), Observer{}, cs...) }()
	<-ps[1].ready
	ps[0].fail <- errors.New("no lease")
	require.ErrorContains(t, <-done, "controllers: no lease")
	require.NotContains(t, l.lines, "+last")
	require.Contains(t, l.lines, "-agent")
}

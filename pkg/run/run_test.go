package run

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type part struct {
	name  string
	ready chan struct{}
	fail  chan error
	// stuck never becomes ready.
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

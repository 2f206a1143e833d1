package run

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// votes is an Election whose outcome the test controls.
type votes struct {
	won  chan context.Context // carries a context that ends with the leadership
	lost chan struct{}        // another process leads
}

func (v *votes) Run(ctx context.Context, lead func(context.Context) error, settled func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.lost:
			settled()
		case term := <-v.won:
			own, cancel := context.WithCancel(term)
			stop := context.AfterFunc(ctx, cancel)
			err := lead(own)
			stop()
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

// TestAGroupFollowsItsLeadership: components are created for each term, start in order, and stop in reverse order.
func TestAGroupFollowsItsLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		v := &votes{make(chan context.Context), make(chan struct{})}
		var started []string
		observe := Observer{Started: func(name string, _ time.Duration) { started = append(started, name) }}
		g := NewGroup("actors", v, observe, func() ([]Component, error) {
			a := &part{name: "a", ready: make(chan struct{}), fail: make(chan error, 1), log: l}
			b := &part{name: "b", ready: make(chan struct{}), fail: make(chan error, 1), log: l}
			return []Component{a, b}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		v.lost <- struct{}{}
		<-g.Ready() // it does not lead
		for range 2 {
			term, end := context.WithCancel(t.Context())
			v.won <- term
			synctest.Wait()
			require.Equal(t, []string{"+a", "+b"}, l.lines)
			end()
			synctest.Wait()
			require.Equal(t, []string{"+a", "+b", "-b", "-a"}, l.lines)
			l.lines = nil
		}
		v.won <- t.Context()
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"+a", "+b", "-b", "-a"}, l.lines)
		require.Equal(t, []string{"a", "b", "a", "b", "a", "b"}, started)
	})
}

func TestAGroupIsReadyWhenItsComponentsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &votes{make(chan context.Context), make(chan struct{})}
		p := &part{name: "a", ready: make(chan struct{}), fail: make(chan error, 1), log: &log{}, stuck: true}
		g := NewGroup("actors", v, Observer{}, func() ([]Component, error) { return []Component{p}, nil })
		done := make(chan error)
		go func() { done <- g.Run(t.Context()) }()
		v.won <- t.Context()
		synctest.Wait()
		select {
		case <-g.Ready():
			t.Fatal("ready before its component")
		default:
		}
		close(p.ready)
		<-g.Ready()
		p.fail <- errors.New("disk full")
		require.EqualError(t, <-done, "a: disk full", "the group fails with its component")
	})
}

// TestAGroupThatHangsEndsTheProcess: another process acts seconds after the leadership is lost.
func TestAGroupThatHangsEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &votes{make(chan context.Context), make(chan struct{})}
		d := &deaf{make(chan struct{}), make(chan struct{})}
		l, _, others := parts("store")
		g := NewGroup("actors", v, Observer{}, func() ([]Component, error) { return []Component{d}, nil })
		done := make(chan error)
		go func() { done <- All(t.Context(), Observer{}, append(others, g)...) }()
		term, end := context.WithCancel(t.Context())
		v.won <- term
		synctest.Wait()
		end()
		lost := time.Now()
		err := <-done
		var h *HungError
		require.ErrorAs(t, err, &h)
		require.Equal(t, []string{"deaf"}, h.Names)
		require.Equal(t, stopLost, time.Since(lost))
		require.Equal(t, []string{"+store", "-store"}, l.lines)
		close(d.release)
	})
}

// TestAGroupStopsWithItsProcess: when the process ends, a Group has more time, but names the hanging component before
// All abandons the Group.
func TestAGroupStopsWithItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &votes{make(chan context.Context), make(chan struct{})}
		d := &deaf{make(chan struct{}), make(chan struct{})}
		g := NewGroup("actors", v, Observer{}, func() ([]Component, error) { return []Component{d}, nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- All(ctx, Observer{}, g) }()
		v.won <- t.Context()
		synctest.Wait()
		cancel()
		var h *HungError
		require.ErrorAs(t, <-done, &h)
		require.Equal(t, []string{"deaf"}, h.Names)
		close(d.release)
	})
}

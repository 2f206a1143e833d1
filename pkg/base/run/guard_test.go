package run_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

func TestAPanicEndsItsUnitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		g := &run.Guard{Log: slog.New(slog.NewTextHandler(&out, nil)), Component: "proxy"}
		require.NoError(t, g.Do("sync", func() {}))
		for range 5 {
			err := g.Do("sync", func() { panic(strings.Repeat("x", 1<<20)) }, "service", "default/web")
			var p *run.Panic
			require.ErrorAs(t, err, &p)
			require.Contains(t, p.Stack, "TestAPanicEndsItsUnitAlone")
			require.Less(t, len(p.Value), 2<<10)
		}
		require.Equal(t, 1, strings.Count(out.String(), "recovered from a panic"), "a storm of panics does not fill the log")
		require.Contains(t, out.String(), "service=default/web")
		time.Sleep(2 * time.Second)
		require.Error(t, g.Do("sync", func() { panic(errors.New("again")) }))
		require.Contains(t, out.String(), "unlogged=4")
		require.EqualValues(t, 6, g.Panics())
		require.Error(t, (*run.Guard)(nil).Do("event", func() { panic("of nobody") }))
	})
}

func TestALoopThatPanicsGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var at []time.Duration
		began := time.Now()
		g := &run.Guard{Log: slog.New(slog.DiscardHandler)}
		g.Loop(ctx, "loop", func(context.Context) {
			if at = append(at, time.Since(began)); len(at) < 12 {
				panic("no")
			}
		})
		require.Equal(t, 100*time.Millisecond, at[1])
		require.Equal(t, 300*time.Millisecond, at[2])
		require.Equal(t, 30*time.Second, at[11]-at[10], "the pause is bounded")
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.Loop(ctx, "loop", func(context.Context) { panic("always") })
		}()
		synctest.Wait()
		cancel()
		<-done
	})
}

type panics struct{ run.Component }

func (panics) Name() string              { return "panics" }
func (panics) Ready() <-chan struct{}    { return nil }
func (panics) Run(context.Context) error { panic("at start") }

func TestAComponentThatPanicsIsAFailure(t *testing.T) {
	err := run.All(t.Context(), run.Observer{}, panics{})
	require.ErrorContains(t, err, "panics: panic: at start")
}

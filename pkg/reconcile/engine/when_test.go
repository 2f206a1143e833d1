package engine

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

// TestNothingRunsBeforeTheFirstObject: a reconciler with When is ready at once, is not made until there is an object of the kind, and what it began
// ends with it.
func TestNothingRunsBeforeTheFirstObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub()
		made, ended := false, false
		r := &Reconciler{Name: "a", When: &corev1.Pod{}, Watches: []Watch{{Object: &corev1.Pod{}}}, New: func(env Env) Func {
			made = true
			env.Go(func(ctx context.Context) { <-ctx.Done(); ended = true })
			return func(context.Context, Request) (Result, error) { return Result{}, nil }
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{ClientFor: func(string) cc.Interface { return s }, Log: slog.New(slog.DiscardHandler)}, []*Reconciler{r}, func() { close(ready) })
		}()
		<-ready
		time.Sleep(time.Hour) // of the test's clock
		synctest.Wait()
		require.False(t, made)
		s.cache.added(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
		synctest.Wait()
		require.True(t, made)
		require.False(t, ended)
		cancel()
		require.NoError(t, <-done)
		require.True(t, ended)
	})
}

// served is a Kinds that changes.
type served struct {
	kinds   []Kind
	changed chan struct{}
}

func (s *served) Stored() ([]Kind, <-chan struct{}) { return s.kinds, s.changed }

// TestNothingRunsBeforeItsKindIsThere: a reconciler of a kind that the API server does not have is ready at once, and begins when it has it.
func TestNothingRunsBeforeItsKindIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kinds := newStub(), &served{changed: make(chan struct{})}
		made := false
		r := &Reconciler{Name: "a", Watches: []Watch{{Object: &corev1.Pod{}}}, New: func(Env) Func {
			made = true
			return func(context.Context, Request) (Result, error) { return Result{}, nil }
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{ClientFor: func(string) cc.Interface { return s }, Log: slog.New(slog.DiscardHandler), Kinds: kinds}, []*Reconciler{r}, func() { close(ready) })
		}()
		<-ready
		synctest.Wait()
		require.False(t, made)
		was := kinds.changed
		kinds.kinds, kinds.changed = []Kind{{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod")}}, make(chan struct{})
		close(was)
		synctest.Wait()
		require.True(t, made)
		cancel()
		require.NoError(t, <-done)
	})
}

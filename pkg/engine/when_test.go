package engine

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

// TestNothingRunsBeforeTheFirstObject checks that a reconciler with When is ready at once, does not run until the
// first object of the kind exists, and that everything it started ends with it.
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
			done <- Run(ctx, Config{ClientFor: func(string) cc.Interface { return s }, Log: slog.New(slog.DiscardHandler)},
				[]*Reconciler{r}, func() { close(ready) })
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

type served struct {
	kinds   []Kind
	changed chan struct{}
}

func (s *served) Stored() ([]Kind, <-chan struct{}) { return s.kinds, s.changed }

// TestNothingRunsBeforeItsKindIsThere checks that a reconciler whose kind the API server lacks is ready at once, and
// starts when the kind appears.
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
			done <- Run(ctx,
				Config{ClientFor: func(string) cc.Interface { return s }, Log: slog.New(slog.DiscardHandler), Kinds: kinds},
				[]*Reconciler{r}, func() { close(ready) })
		}()
		<-ready
		synctest.Wait()
		require.False(t, made)
		was := kinds.changed
		kinds.kinds, kinds.changed = []Kind{{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod")}}, make(
			chan struct{})
		close(was)
		synctest.Wait()
		require.True(t, made)
		cancel()
		require.NoError(t, <-done)
	})
}

// TestOptionalKinds checks that a reconciler works without an optional kind, as if there were no such objects, and
// restarts when the API server gets it.
func TestOptionalKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kinds := newStub(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c", Labels: map[string]string{"a": "b"}},
		}), &served{changed: make(chan struct{})}
		change := func(names ...string) {
			was := kinds.changed
			kinds.kinds, kinds.changed = nil, make(chan struct{})
			for _, name := range names {
				kinds.kinds = append(kinds.kinds, Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind(name)})
			}
			close(was)
			synctest.Wait()
		}
		change("Pod")
		monitor, made, seen := NewMonitor(nil), 0, ""
		r := &Reconciler{Name: "a", Watches: []Watch{{Object: &corev1.Pod{}}, {Object: &corev1.ConfigMap{}, Optional: true}},
			Indexes: []Index{
				{
					Object: &corev1.ConfigMap{}, Name: "metadata.name",
					Values: func(o client.Object) []string { return []string{o.GetName()} },
				},
			}, New: func(env Env) Func {
				made++
				return func(ctx context.Context, req Request) (Result, error) {
					var c corev1.ConfigMap
					err := env.Cache.Get(ctx, client.ObjectKey{Namespace: "n", Name: "c"}, &c)
					var all, indexed corev1.ConfigMapList
					require.NoError(t, env.Cache.List(ctx, &all))
					if made == 1 { // the stub has no indexes
						require.NoError(t, env.ByIndex(ctx, &indexed, "n", "metadata.name", "c"))
					}
					seen = fmt.Sprint(req.Name, " ", apierrors.IsNotFound(err), " ", len(all.Items), " ", len(indexed.Items))
					return Result{}, nil
				}
			}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx,
				Config{
					ClientFor: func(string) cc.Interface { return s },
					Log:       slog.New(slog.DiscardHandler),
					Kinds:     kinds,
					Monitor:   monitor,
				}, []*Reconciler{r}, func() {})
		}()
		synctest.Wait()
		s.cache.added(aPod())
		synctest.Wait()
		require.Equal(t, "p true 0 0", seen)
		change("Pod", "Secret")
		require.Equal(t, 1, made)
		change("Pod", "ConfigMap")
		require.Equal(t, 2, made)
		s.cache.added(aPod())
		synctest.Wait()
		require.Equal(t, "p false 1 0", seen)
		cancel()
		require.NoError(t, <-done)
	})
}

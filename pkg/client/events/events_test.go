package events

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	cc "github.com/coracle-dev/coracle/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type stub struct{ ctrl.WithWatch }

func (stub) Cache() ctrlcache.Cache { return nil }

func stored(t *testing.T, c cc.Interface) map[string]corev1.Event {
	var list corev1.EventList
	require.NoError(t, c.List(t.Context(), &list))
	out := map[string]corev1.Event{}
	for _, e := range list.Items {
		out[e.Reason] = e
	}
	return out
}

func TestRepeatsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stub{fake.NewClientBuilder().WithScheme(cc.Scheme()).Build()}
		r := New(c, "test-controller", "host", nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}}
		for i := range 3 {
			pod.ResourceVersion = fmt.Sprint(i) // another version of the same object
			r.Event(pod, corev1.EventTypeNormal, "Created", "made %d", 1)
			time.Sleep(time.Second)
		}
		r.Event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, corev1.EventTypeWarning, "Long", "%s",
			strings.Repeat("x", 5000))
		synctest.Wait()
		got := stored(t, c)
		require.Len(t, got, 2)
		e := got["Created"]
		require.EqualValues(t, 3, e.Count)
		require.Equal(t, 2*time.Second, e.LastTimestamp.Sub(e.FirstTimestamp.Time))
		require.Equal(t, "n/p Pod v1 made 1 test-controller host",
			fmt.Sprint(e.Namespace, "/", e.InvolvedObject.Name, " ", e.InvolvedObject.Kind, " ", e.InvolvedObject.APIVersion,
				" ", e.Message, " ", e.Source.Component, " ", e.Source.Host))
		require.Len(t, got["Long"].Message, maxMessage)
		require.Equal(t, "default", got["Long"].Namespace)

		require.NoError(t, c.Delete(t.Context(), &e)) // expired meanwhile: created again
		r.Event(pod, corev1.EventTypeNormal, "Created", "made %d", 1)
		synctest.Wait()
		require.EqualValues(t, 1, stored(t, c)["Created"].Count)
		cancel()
		<-done
	})
}

func TestRecordingNeverBlocks(t *testing.T) {
	r := New(stub{fake.NewClientBuilder().WithScheme(cc.Scheme()).Build()}, "c", "", nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}
	for range backlog + 10 { // nothing reads the queue
		r.Event(pod, corev1.EventTypeNormal, "R", "m")
	}
	require.EqualValues(t, 10, r.Lost())
	for range backlog + 10 {
		r.Event(pod, corev1.EventTypeWarning, "Failed", "what went wrong takes the place of what is as usual")
	}
	require.Len(t, r.waiting, backlog)
	require.False(t, slices.ContainsFunc(r.waiting, func(h happening) bool { return h.kind == corev1.EventTypeNormal }))
	require.EqualValues(t, backlog+20, r.Lost())
	var none *Recorder
	none.Event(pod, corev1.EventTypeNormal, "R", "m")
}

// TestLostEventsAreLogged: lost events are logged at once, then once a minute, and when the recorder stops.
func TestLostEventsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail error
		c := stub{interceptor.NewClient(fake.NewClientBuilder().WithScheme(cc.Scheme()).Build(), interceptor.Funcs{
			Create: func(ctx context.Context, c ctrl.WithWatch, o ctrl.Object, opts ...ctrl.CreateOption) error {
				if fail != nil {
					return fail
				}
				return c.Create(ctx, o, opts...)
			},
		})}
		var out runtest.Buffer
		r := New(c, "test-controller", "", slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		record := func(reason string) {
			r.Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}, corev1.EventTypeNormal, reason, "m")
			synctest.Wait()
		}
		lines := func() int { return strings.Count(out.String(), "could not record events") }
		record("Written")
		require.Zero(t, lines())
		fail = apierrors.NewTooManyRequestsError("limit reached")
		for i := range 5 {
			record(fmt.Sprint("Lost", i))
		}
		require.EqualValues(t, 5, r.Lost())
		require.Equal(t, 1, lines())
		require.Contains(t, out.String(), `lost=1 lostTotal=1 error="Too many requests: limit reached"`)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 2, lines())
		require.Contains(t, out.String(), "lost=4 lostTotal=5")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 2, lines(), "nothing more was lost")

		fail = apierrors.NewForbidden(corev1.Resource("events"), "e", nil)
		terminating := fail.(*apierrors.StatusError) //nolint:errorlint // made above
		terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		record("Late")
		require.EqualValues(t, 5, r.Lost(), "nobody misses events of a namespace that ends")
		fail = apierrors.NewTooManyRequestsError("limit reached")
		record("Lost6")
		record("Lost7")
		require.Equal(t, 3, lines())
		cancel()
		<-done
		require.Contains(t, out.String(), "lost=1 lostTotal=7")
	})
}

// TestSimilarEventsAreCombined: a controller that fails with a new random name each time does not fill the store.
func TestSimilarEventsAreCombined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stub{fake.NewClientBuilder().WithScheme(cc.Scheme()).Build()}
		r := New(c, "test-controller", "", nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		set := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "set", UID: "u"}}
		fails := func(from, to int) []corev1.Event {
			for i := from; i < to; i++ {
				r.Event(set, corev1.EventTypeWarning, "FailedCreate", "pod set-%d is refused", i)
				time.Sleep(time.Second)
			}
			synctest.Wait()
			var list corev1.EventList
			require.NoError(t, c.List(t.Context(), &list))
			return list.Items
		}
		require.Len(t, fails(0, 10), 10)
		all := fails(10, 50)
		require.Len(t, all, 11)
		newest := all[0]
		for _, e := range all {
			if e.LastTimestamp.After(newest.LastTimestamp.Time) {
				newest = e
			}
		}
		require.Equal(t, "(combined from similar events): pod set-49 is refused", newest.Message)
		require.EqualValues(t, 40, newest.Count)
		r.Event(set, corev1.EventTypeNormal, "Created", "made")
		synctest.Wait()
		require.Equal(t, "made", stored(t, c)["Created"].Message, "other reasons are other events")
		time.Sleep(similarFor)
		require.Len(t, fails(50, 51), 13, "after a while it is said again")
		cancel()
		<-done
	})
}

// TestEventsWaitForSpace: events of a time in which the store is full, such as the evictions that free the disk, are
// written once it has space. If it stays full, they are lost, as others, and do not pile up.
func TestEventsWaitForSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		full.Store(true)
		c := stub{interceptor.NewClient(fake.NewClientBuilder().WithScheme(cc.Scheme()).Build(), interceptor.Funcs{
			Create: func(ctx context.Context, c ctrl.WithWatch, o ctrl.Object, opts ...ctrl.CreateOption) error {
				if full.Load() {
					return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInsufficientStorage}}
				}
				return c.Create(ctx, o, opts...)
			},
		})}
		r := New(c, "kubelet", "", slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		defer func() { cancel(); <-done }()
		record := func(reason string) {
			r.Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}, corev1.EventTypeWarning, reason, "m")
			time.Sleep(time.Millisecond) // names have the time
		}
		record("Evicted")
		record("Killing")
		time.Sleep(time.Minute)
		require.Zero(t, r.Lost())
		full.Store(false)
		time.Sleep(fullPause)
		synctest.Wait()
		require.Len(t, stored(t, c), 2)

		full.Store(true)
		record("First")
		time.Sleep(fullTries * fullPause)
		require.EqualValues(t, 1, r.Lost())
		record("Second")
		require.EqualValues(t, 2, r.Lost(), "at once")
		full.Store(false)
		record("Third")
		require.Len(t, stored(t, c), 3)
	})
}

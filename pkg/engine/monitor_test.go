package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
)

// TestRefusalsAreToldFromFaults checks that an exhausted quota is not a fault of the reconciler, but a missing
// permission is.
func TestRefusalsAreToldFromFaults(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	quota := apierrors.NewForbidden(pods, "a", errors.New("exceeded quota: q, requested: pods=1"))
	permission := apierrors.NewForbidden(pods, "a", errors.New(`User "x" cannot create resource "pods"`))
	for _, err := range []error{
		quota,
		fmt.Errorf("create: %w", quota),
		errors.Join(quota, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil)),
	} {
		require.True(t, refused(err), err)
	}
	for _, err := range []error{
		permission,
		errors.Join(quota, permission),
		fmt.Errorf("create: %w: %w", quota, errors.New("disk")),
		errors.New("disk"),
		nil,
	} {
		require.False(t, refused(err), err)
	}
}

func TestAMonitorKnowsWhatFailsAndSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		m := NewMonitor(reg)
		o := &observer{r: &Reconciler{Name: "web"}, handles: m.metrics.of("web", 2), failing: map[Request]*Failure{}}
		m.observers = append(m.observers, o)
		q := newQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Request](time.Hour, time.Hour), o.handles)
		o.starts(q, nil)

		began := time.Now()
		a, b := RequestFor("default", "a"), RequestFor("", "b")
		call := func(r Request, res Result, err error, panicked bool) {
			q.Add(r)
			got, _ := q.Get()
			require.Equal(t, r, got)
			end := o.begin(r)
			time.Sleep(time.Second)
			end(res, err, panicked)
			q.Done(r)
		}
		call(a, Result{}, errors.New(strings.Repeat("x", 1<<20)), false)
		call(a, Result{}, errors.New("quota exceeded"), false)
		q.AddRateLimited(a)
		call(b, Result{}, nil, true)
		call(RequestFor("", "c"), Result{RequeueAfter: time.Second}, nil, false)
		q.Add(RequestFor("", "d"))
		r := m.Report()[0]
		require.Equal(t, 2, r.Failing)
		require.Equal(t, Failure{Object: "default/a", Since: began, Attempts: 2, Error: "quota exceeded"}, r.Failures[0])
		require.Contains(t, r.Failures[1].Error, "panic")
		require.Equal(t, []int{1, 1, 0}, []int{r.Queued, r.Delayed, r.Running})

		end := o.begin(a)
		end(Result{}, nil, false)
		require.Equal(t, 1, m.Report()[0].Failing, "what succeeds is forgotten")

		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP controller_runtime_reconcile_total Total number of reconciliations per controller
# TYPE controller_runtime_reconcile_total counter
controller_runtime_reconcile_total{controller="web",result="error"} 3
controller_runtime_reconcile_total{controller="web",result="requeue_after"} 1
controller_runtime_reconcile_total{controller="web",result="success"} 1
# HELP coracle_reconciler_failing_objects Objects whose last reconciliation failed and that are in back-off, per controller
# TYPE coracle_reconciler_failing_objects gauge
coracle_reconciler_failing_objects{controller="web"} 1
# HELP workqueue_adds_total Total number of adds handled by workqueue
# TYPE workqueue_adds_total counter
workqueue_adds_total{name="web"} 5
# HELP workqueue_depth Current depth of workqueue
# TYPE workqueue_depth gauge
workqueue_depth{name="web"} 1
# HELP workqueue_retries_total Total number of retries handled by workqueue
# TYPE workqueue_retries_total counter
workqueue_retries_total{name="web"} 1
`), "controller_runtime_reconcile_total", "coracle_reconciler_failing_objects", "workqueue_adds_total",
			"workqueue_depth", "workqueue_retries_total"))
		q.ShutDown()
	})
}

func TestWhatAMonitorRemembersIsBounded(t *testing.T) {
	o := &observer{r: &Reconciler{Name: "web"}, handles: newMetrics(nil).of("web", 1), failing: map[Request]*Failure{}}
	for i := range 2 * mostFailing {
		o.begin(RequestFor("", strings.Repeat("x", i)))(Result{}, errors.New(strings.Repeat("e", 2*maxError)), false)
	}
	require.Len(t, o.failing, mostFailing)
	r := o.report()
	require.Len(t, r.Failures, shownFailing)
	require.LessOrEqual(t, len(r.Failures[0].Error), maxError+3)
}

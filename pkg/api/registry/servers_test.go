package registry

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// increment adds one to the counter by a conditional update, as a client does.
func (h *env) increment(ctx context.Context) error {
	for {
		res, err := h.Get(ctx, v1("ConfigMap", "counter"), metav1.GetOptions{})
		if err != nil {
			return err
		}
		o, err := res.Value()
		if err != nil {
			return err
		}
		next := o.(*corev1.ConfigMap).DeepCopy()
		n, err := strconv.Atoi(next.Data["n"])
		if err != nil {
			return err
		}
		next.Data["n"] = strconv.Itoa(n + 1)
		if _, err = h.Update(ctx, v1("ConfigMap", "counter"), next, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// Two servers over one store increment a counter while one is paused, resumed and finally killed. No acknowledged write
// is lost, and a watch on the other server shows each write once, in order.
func TestTwoServersServeOneCluster(t *testing.T) {
	first := build(t)
	a, _ := first.another(small)
	b, gate := first.another(small)
	put(first, v1("ConfigMap", ""), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "counter"}, Data: map[string]string{"n": "0"},
	})
	_, err := a.sync(a.ctx)
	require.NoError(t, err)
	watch, initial, _, err := a.Watch(a.ctx, v1("ConfigMap", ""), metav1.ListOptions{
		FieldSelector: "metadata.name=counter",
	})
	require.NoError(t, err)
	defer watch.Close()
	require.Len(t, initial, 1)

	const each, rounds = 3, 20
	var acknowledged, doubtful atomic.Int64
	alive, kill := context.WithCancel(b.ctx)
	defer kill()
	var others sync.WaitGroup
	for range 3 {
		others.Go(func() { // the server that is paused and finally killed
			for alive.Err() == nil {
				if err := b.increment(alive); err == nil {
					acknowledged.Add(1)
				} else {
					doubtful.Add(1)
				}
			}
		})
	}
	for range rounds {
		gate.mu.Lock()
		var mine sync.WaitGroup
		for range each {
			mine.Go(func() { // continues while the other is paused
				if err := a.increment(a.ctx); err != nil {
					t.Error(err)
				}
				acknowledged.Add(1)
			})
		}
		mine.Wait()
		gate.mu.Unlock()
		_, err := b.sync(b.ctx) // wait until it has caught up
		require.NoError(t, err)
	}
	kill()
	others.Wait()
	require.NoError(t, a.increment(a.ctx))
	acknowledged.Add(1)

	last, err := strconv.ParseInt(counter(t, a), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, last, acknowledged.Load())
	require.LessOrEqual(t, last, acknowledged.Load()+doubtful.Load())
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Minute)
	defer cancel()
	for seen := int64(0); seen < last; {
		events, err := watch.Next(ctx)
		require.NoError(t, err)
		for _, e := range events {
			seen++
			require.Equal(t, strconv.FormatInt(seen, 10), e.Entry.Object.(*corev1.ConfigMap).Data["n"])
		}
	}
}

func counter(t *testing.T, h *env) string {
	_, err := h.sync(h.ctx)
	require.NoError(t, err)
	res, err := h.Get(h.ctx, v1("ConfigMap", "counter"), metav1.GetOptions{})
	return answer[*corev1.ConfigMap](t, res, err).Data["n"]
}

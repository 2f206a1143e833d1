package clienttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

func (s suite) watch(t *testing.T, ctx context.Context) {
	was := s.configMap("watch", map[string]string{"watch": ""})
	require.NoError(t, s.c.Create(ctx, was))
	w, err := s.c.Watch(ctx, &corev1.ConfigMapList{}, ctrl.InNamespace(s.ns), ctrl.HasLabels{"watch"})
	require.NoError(t, err)
	next := func(want watch.EventType) *corev1.ConfigMap {
		e, ok := <-w.ResultChan()
		require.True(t, ok)
		require.Equal(t, want, e.Type, "%v", e.Object)
		return e.Object.(*corev1.ConfigMap)
	}
	require.Equal(t, "watch", next(watch.Added).Name)
	was.Data["k"] = "w"
	require.NoError(t, s.c.Update(ctx, was))
	require.Equal(t, "w", next(watch.Modified).Data["k"])
	require.NoError(t, s.c.Delete(ctx, was))
	require.Equal(t, "watch", next(watch.Deleted).Name)
	w.Stop()
	for range w.ResultChan() { // until it is closed
	}
}

func (s suite) informer(t *testing.T, ctx context.Context) {
	require.Eventually(t, func() bool { // wait until objects of other tests are gone
		var l corev1.ConfigMapList
		return s.c.List(ctx, &l, ctrl.InNamespace(s.ns)) == nil && len(l.Items) == 0
	}, wait, time.Millisecond)
	before := s.configMap("informer-before", nil)
	require.NoError(t, s.c.Create(ctx, before))
	require.NoError(t, s.c.Get(ctx, s.key(before.Name), before.DeepCopy())) // start caching the kind
	i, err := s.c.Cache().GetInformer(ctx, &corev1.ConfigMap{})
	require.NoError(t, err)
	require.True(t, i.HasSynced())
	type event struct {
		what, name, old, new string
		initial              bool
	}
	events := make(chan event, 100)
	mine := func(o any) (*corev1.ConfigMap, bool) {
		if d, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		m := o.(*corev1.ConfigMap)
		return m, m.Namespace == s.ns
	}
	reg, err := i.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if m, ok := mine(o); ok {
				events <- event{"add", m.Name, "", m.Data["k"], initial}
			}
		},
		UpdateFunc: func(o, n any) {
			if m, ok := mine(n); ok {
				was, _ := mine(o)
				events <- event{"update", m.Name, was.Data["k"], m.Data["k"], false}
			}
		},
		DeleteFunc: func(o any) {
			if m, ok := mine(o); ok {
				events <- event{what: "delete", name: m.Name}
			}
		},
	})
	require.NoError(t, err)
	next := func() event {
		select {
		case e := <-events:
			return e
		case <-ctx.Done():
			t.Fatal("no event came")
			return event{}
		}
	}
	require.Equal(t, event{"add", "informer-before", "", "v", true}, next())
	select {
	case <-reg.HasSyncedChecker().Done():
	case <-ctx.Done():
		t.Fatal("the handler never synced")
	}
	require.True(t, reg.HasSynced())
	m := s.configMap("informer", nil)
	require.NoError(t, s.c.Create(ctx, m))
	require.Equal(t, event{"add", "informer", "", "v", false}, next())
	m.Data["k"] = "w"
	require.NoError(t, s.c.Update(ctx, m))
	require.Equal(t, event{"update", "informer", "v", "w", false}, next())
	require.NoError(t, s.c.Delete(ctx, m))
	require.Equal(t, event{what: "delete", name: "informer"}, next())
	require.NoError(t, i.RemoveEventHandler(reg))
	require.NoError(t, s.c.Delete(ctx, before))
}

package cache

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two kinds are enough for the cache; building the real table would load all of Kubernetes' types.
var (
	pods = &kind.Resource{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods", Singular: "pod", Namespaced: true,
		Keys: "pods", Proto: true,
		New: func() client.Object { return &corev1.Pod{} }, NewList: func() client.ObjectList { return &corev1.PodList{} },
		Indexes: []kind.Index{
			{Field: "spec.nodeName", Value: func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
		},
		Fields: func(o client.Object) fields.Set {
			p := o.(*corev1.Pod)
			return fields.Set{
				"metadata.name":      p.Name,
				"metadata.namespace": p.Namespace,
				"spec.nodeName":      p.Spec.NodeName,
				"status.phase":       string(p.Status.Phase),
			}
		},
	}
	nodes = &kind.Resource{
		GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Node"}, Plural: "nodes", Singular: "node",
		Keys: "minions", Proto: true,
		New: func() client.Object { return &corev1.Node{} }, NewList: func() client.ObjectList { return &corev1.NodeList{} },
		Fields: func(o client.Object) fields.Set { return fields.Set{"metadata.name": o.GetName()} },
	}
	testTable = kind.MustTable(pods, nodes)
)

func start(t testing.TB, c interface {
	Run(context.Context) error
	Ready() <-chan struct{}
}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case <-c.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("did not start: %v", err)
	}
}

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.New(store.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	start(t, s)
	return s
}

func openCache(t testing.TB, cfg Config) *Cache {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	if cfg.Kinds == nil {
		cfg.Kinds = kind.NewCatalog(testTable)
	}
	c, err := New(cfg)
	require.NoError(t, err)
	start(t, c)
	return c
}

func pod(ns, name string, f ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("u-" + name)}}
	for _, f := range f {
		f(p)
	}
	return p
}

func put(t testing.TB, s *store.Store, r *kind.Resource, o client.Object, rev int64) int64 {
	t.Helper()
	b, err := r.Encode(o)
	require.NoError(t, err)
	key := r.Key(o.GetNamespace(), o.GetName())
	if rev == 0 {
		rev, err = s.Create(t.Context(), key, b, 0)
	} else {
		rev, err = s.Update(t.Context(), key, b, rev, 0)
	}
	require.NoError(t, err)
	return rev
}

func names(entries []*Entry) []string {
	list := []string{}
	for _, e := range entries {
		list = append(list, e.tail())
	}
	return list
}

func TestReadsFollowTheStore(t *testing.T) {
	s := openStore(t)
	put(t, s, pods, pod("b", "old"), 0)
	c := openCache(t, Config{Source: s})
	require.Equal(t, []string{"b/old"}, names(first(c.List(pods, Query{}))))

	labelled := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }
	onNode := func(p *corev1.Pod) {
		p.Spec.NodeName = "n1"
		p.OwnerReferences = []metav1.OwnerReference{{UID: "owner"}}
	}
	put(t, s, pods, pod("a", "one", labelled), 0)
	put(t, s, pods, pod("a-b", "two", labelled, onNode), 0)
	put(t, s, nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, 0)
	rev := put(t, s, pods, pod("a", "three", onNode), 0)
	require.NoError(t, c.WaitFor(t.Context(), rev))
	require.Equal(t, rev, c.Revision())

	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	for _, tc := range []struct {
		q    Query
		want []string
	}{
		{Query{}, []string{"a-b/two", "a/one", "a/three", "b/old"}},
		{Query{Namespace: "a"}, []string{"a/one", "a/three"}},
		{Query{Labels: web}, []string{"a-b/two", "a/one"}},
		{Query{Namespace: "a", Labels: web}, []string{"a/one"}},
		{Query{Fields: fields.ParseSelectorOrDie("spec.nodeName=n1")}, []string{"a-b/two", "a/three"}},
		{Query{Fields: fields.ParseSelectorOrDie("spec.nodeName=")}, []string{"a/one", "b/old"}},
		{Query{Fields: fields.ParseSelectorOrDie("spec.nodeName!=n1")}, []string{"a/one", "b/old"}},
		{
			Query{Namespace: "a", Fields: fields.ParseSelectorOrDie("spec.nodeName=n1,metadata.name=three")},
			[]string{"a/three"},
		},
		{Query{Fields: fields.ParseSelectorOrDie("metadata.name=one")}, []string{"a/one"}},
		{Query{Fields: fields.ParseSelectorOrDie("metadata.namespace=b")}, []string{"b/old"}},
		{Query{Namespace: "a", Fields: fields.ParseSelectorOrDie("metadata.namespace=b")}, []string{}},
		{Query{Fields: fields.ParseSelectorOrDie("metadata.name=one,metadata.name=three")}, []string{}},
		{Query{Fields: fields.ParseSelectorOrDie("status.phase=Running")}, []string{}},
	} {
		got, at := c.List(pods, tc.q)
		require.Equal(t, tc.want, names(got), "%+v", tc.q)
		require.Equal(t, rev, at)
	}
	e := c.Get(pods, "a", "three")
	require.Equal(t, fmt.Sprint(rev), e.Object.GetResourceVersion())
	require.Equal(t, "Pod", e.Object.GetObjectKind().GroupVersionKind().Kind)
	require.Nil(t, c.Get(pods, "a", "four"))
	require.NotNil(t, c.Get(nodes, "", "n1"))

	_, err := s.Delete(t.Context(), e.Key, rev)
	require.NoError(t, err)
	require.NoError(t, c.WaitFor(t.Context(), rev+1))
	require.Nil(t, c.Get(pods, "a", "three"))
}

func first(entries []*Entry, _ int64) []*Entry { return entries }

func TestWatchSelectorTransitions(t *testing.T) {
	s := openStore(t)
	c := openCache(t, Config{Source: s})
	web := Query{Labels: labels.SelectorFromSet(labels.Set{"app": "web"})}
	app := func(v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"app": v} }
	}
	w, initial, sync, err := c.Watch(pods, web, -1)
	require.NoError(t, err)
	defer w.Close()
	require.Empty(t, initial)
	require.Equal(t, c.Revision(), sync)

	r1 := put(t, s, pods, pod("a", "x", app("db")), 0)
	r2 := put(t, s, pods, pod("a", "x", app("web")), r1)
	r3 := put(t, s, pods, pod("a", "x", app("web"), func(p *corev1.Pod) { p.Spec.NodeName = "n" }), r2)
	r4 := put(t, s, pods, pod("a", "x", app("db")), r3)
	r5 := put(t, s, pods, pod("a", "x", app("web")), r4)
	r6, err := s.Delete(t.Context(), pods.Key("a", "x"), r5)
	require.NoError(t, err)
	r7 := put(t, s, nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, 0)

	var got []string
	for len(got) < 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		events, err := w.Next(ctx)
		cancel()
		require.NoError(t, err)
		for _, ev := range events {
			got = append(got,
				fmt.Sprintf("%s %d %s %s", ev.Type, ev.Rev, ev.Entry.Object.GetResourceVersion(),
					ev.Entry.Object.GetLabels()["app"]))
		}
	}
	require.Equal(t, []string{
		fmt.Sprintf("ADDED %d %d web", r2, r2),
		fmt.Sprintf("MODIFIED %d %d web", r3, r3),
		fmt.Sprintf("DELETED %d %d web", r4, r4),
		fmt.Sprintf("ADDED %d %d web", r5, r5),
		fmt.Sprintf("DELETED %d %d web", r6, r6),
	}, got)
	require.NoError(t, c.WaitFor(t.Context(), r7))
	require.Equal(t, r7, w.Progress())
}

package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

func custom(name string) *kind.Resource {
	gvk := schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: name}
	return &kind.Resource{
		GroupVersionKind: gvk, Plural: name + "s", Singular: name, Namespaced: true, Keys: "example.org/" + name + "s",
		New: func() client.Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(gvk)
			return u
		},
		NewList: func() client.ObjectList { return &unstructured.UnstructuredList{} },
		Fields:  func(o client.Object) fields.Set { return fields.Set{"metadata.name": o.GetName()} },
	}
}

func thing(r *kind.Resource, name string) client.Object {
	o := r.New()
	o.SetNamespace("a")
	o.SetName(name)
	return o
}

func TestKindsComeAndGo(t *testing.T) {
	s := openStore(t)
	kinds := kind.NewCatalog(testTable)
	c := openCache(t, Config{Source: s, Kinds: kinds})
	r := custom("thing")
	rev := put(t, s, r, thing(r, "before"), 0)
	require.NoError(t, c.WaitFor(t.Context(), rev))
	entries, _ := c.List(r, Query{})
	require.Empty(t, entries)
	_, _, _, err := c.Watch(r, Query{}, -1)
	require.ErrorIs(t, err, ErrUnknownKind)

	require.NoError(t, kinds.Change(t.Context(), nil, []*kind.Resource{r}))
	require.Equal(t, []string{"a/before"}, names(first(c.List(r, Query{}))))
	w, initial, _, err := c.Watch(r, Query{}, -1)
	require.NoError(t, err)
	defer w.Close()
	require.Len(t, initial, 1)
	put(t, s, r, thing(r, "after"), 0)
	events, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a/after", events[0].Entry.tail())

	// Another row of the same storage: objects stay, and the watch continues.
	again := custom("thing")
	again.Storage, again.ShortNames = r.Storage, []string{"th"}
	require.NoError(t, kinds.Change(t.Context(), []*kind.Resource{r}, []*kind.Resource{again}))
	require.Same(t, again, kinds.Table().ByGVR(r.GVR()))
	require.Equal(t, []string{"a/after", "a/before"}, names(first(c.List(again, Query{}))))
	put(t, s, r, thing(r, "third"), 0)
	_, err = w.Next(t.Context())
	require.NoError(t, err)

	require.NoError(t, kinds.Change(t.Context(), []*kind.Resource{again}, nil))
	_, err = w.Next(t.Context())
	require.ErrorIs(t, err, ErrRemoved)
	require.Nil(t, c.Get(again, "a", "after"))

	// The same name added again with a new storage: readers with the old row do not see its objects.
	anew := custom("thing")
	require.NoError(t, kinds.Change(t.Context(), nil, []*kind.Resource{anew}))
	require.NotNil(t, c.Get(anew, "a", "after"))
	require.Nil(t, c.Get(again, "a", "after"))
	require.Nil(t, c.Get(r, "a", "after"))
}

// broken is a source whose reads of one prefix fail.
type broken struct {
	Source
	prefix string
	fail   atomic.Bool
}

func (b *broken) Page(ctx context.Context, prefix, from string, limit, rev int64) ([]kind.KV, int64, bool, error) {
	if prefix == b.prefix && b.fail.Load() {
		return nil, 0, false, errors.New("disk on fire")
	}
	return b.Source.Page(ctx, prefix, from, limit, rev)
}

func TestKindThatCannotBeReadIsNotServed(t *testing.T) {
	s := openStore(t)
	r := custom("thing")
	src := &broken{Source: s, prefix: kind.Root + r.Keys + "/"}
	src.fail.Store(true)
	kinds := kind.NewCatalog(testTable)
	c := openCache(t, Config{Source: src, Kinds: kinds})
	require.ErrorContains(t, kinds.Change(t.Context(), nil, []*kind.Resource{r}), "disk on fire")
	require.Nil(t, kinds.Table().ByGVR(r.GVR()))
	require.Same(t, testTable, kinds.Table())
	rev := put(t, s, r, thing(r, "one"), 0)
	require.NoError(t, c.WaitFor(t.Context(), rev))

	src.fail.Store(false)
	require.NoError(t, kinds.Change(t.Context(), nil, []*kind.Resource{r}))
	require.Equal(t, []string{"a/one"}, names(first(c.List(r, Query{}))))
}

// TestKindsChangeUnderLoad adds, replaces and removes kinds while their objects, and pods, are written. Whenever a
// kind is cached, its readers see the store's state. Readers of pods miss nothing and are not blocked.
func TestKindsChangeUnderLoad(t *testing.T) {
	kindsOf, rounds := 500, 1
	if raceBuild || testing.Short() {
		kindsOf = 40
	}
	s := openStore(t)
	kinds := kind.NewCatalog(testTable)
	c := openCache(t, Config{Source: s, Kinds: kinds})
	rows := make([]*kind.Resource, kindsOf)
	for i := range rows {
		rows[i] = custom(fmt.Sprintf("kind%03d", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	var written atomic.Int64
	load.Go(func() { // pods, counted by a watcher
		for i := 0; ctx.Err() == nil; i++ {
			put(t, s, pods, pod("a", fmt.Sprintf("p%d", i)), 0)
			written.Store(int64(i + 1))
		}
	})
	stored := slices.Clone(rows)
	load.Go(func() { // objects of kinds that are added and removed
		for i := 0; ctx.Err() == nil; i++ {
			put(t, s, stored[i%kindsOf], thing(stored[i%kindsOf], fmt.Sprintf("o%d", i)), 0)
		}
	})
	w, initial, _, err := c.Watch(pods, Query{}, -1)
	require.NoError(t, err)
	defer w.Close()
	seen := len(initial)
	watched := make(chan error, 1)
	go func() {
		for {
			events, err := w.Next(ctx)
			if err != nil {
				watched <- err
				return
			}
			seen += len(events)
		}
	}()
	check := func(r *kind.Resource) {
		entries, rev := c.List(r, Query{})
		kvs, _, _, err := s.Range(ctx, r.Storage.Prefix(), "", 0, rev)
		require.NoError(t, err)
		require.Len(t, entries, len(kvs), r.Kind)
		for i := range kvs {
			require.Equal(t, kvs[i].Key, entries[i].Key)
			require.Equal(t, kvs[i].Revision, entries[i].Revision)
		}
	}
	for range rounds {
		var took time.Duration
		for _, r := range rows {
			began := time.Now()
			require.NoError(t, kinds.Change(ctx, nil, []*kind.Resource{r}))
			took += time.Since(began)
			check(r)
		}
		each := took / time.Duration(kindsOf)
		t.Logf("%d kinds added, %s each, while %d pods were written", kindsOf, each, written.Load())
		// 0.25 ms on two cores. A slower machine may take longer, but not in proportion to the number of kinds.
		if !raceBuild {
			require.Less(t, each, 10*time.Millisecond)
		}
		for i, r := range rows {
			again := custom(fmt.Sprintf("kind%03d", i))
			again.Storage = r.Storage
			require.NoError(t, kinds.Change(ctx, []*kind.Resource{r}, []*kind.Resource{again}))
			rows[i] = again
			check(again)
		}
		for _, r := range rows {
			require.NoError(t, kinds.Change(ctx, []*kind.Resource{r}, nil))
		}
	}
	require.Same(t, pods, kinds.Table().All()[0])
	require.Len(t, kinds.Table().All(), 2)
	stop()
	require.ErrorIs(t, <-watched, context.Canceled)
	load.Wait()
	rev, err := s.Revision(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.WaitFor(t.Context(), rev))
	require.LessOrEqual(t, seen, int(written.Load())+1)
	entries, _ := c.List(pods, Query{})
	require.GreaterOrEqual(t, len(entries), int(written.Load()))
}

// An object stored in an older version is read in the present stored version. Other versions take one conversion for
// all readers.
func TestVersions(t *testing.T) {
	stored, old := custom("thing"), custom("thing")
	old.Version, old.StoredAs = "v1beta1", nil
	old.New = func() client.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(old.GroupVersionKind)
		return u
	}
	conversions := atomic.Int32{}
	asIs := func(o client.Object) (runtime.Object, error) { return o, nil }
	rename := func(from, to string) func(runtime.Object) (client.Object, error) {
		return func(o runtime.Object) (client.Object, error) {
			conversions.Add(1)
			u := o.(*unstructured.Unstructured).DeepCopy()
			if v, ok := u.Object[from]; ok {
				u.Object[to] = v
				delete(u.Object, from)
			}
			return u, nil
		}
	}
	stored.Internal, old.Internal = asIs, asIs
	stored.External, old.External = rename("size", "length"), rename("length", "size")

	s := openStore(t)
	was := old.New().(*unstructured.Unstructured)
	was.SetNamespace("a")
	was.SetName("x")
	was.Object["size"] = int64(3)
	put(t, s, old, was, 0) // when v1beta1 was the stored version

	old.StoredAs, stored.Also = stored, []*kind.Resource{old}
	table, err := kind.NewTable(stored, old)
	require.NoError(t, err)
	c := openCache(t, Config{Source: s, Kinds: kind.NewCatalog(table)})
	require.Same(t, c.kindCache(stored), c.kindCache(old))
	e := c.Get(stored, "a", "x")
	u := e.Object.(*unstructured.Unstructured)
	require.Equal(t, "example.org/v1", u.GetAPIVersion())
	require.EqualValues(t, 3, u.Object["length"])
	conversions.Store(0)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			shown, err := e.In(old)
			if err != nil || shown.Object.(*unstructured.Unstructured).GetAPIVersion() != "example.org/v1beta1" ||
				shown.Object.(*unstructured.Unstructured).Object["size"] != int64(3) || shown.Revision != e.Revision {
				t.Errorf("%v %v", shown, err)
			}
		})
	}
	all.Wait()
	a, _ := e.In(old)
	b, _ := e.In(old)
	require.Same(t, a, b)
	require.Equal(t, &a.JSON()[0], &b.JSON()[0])
	require.LessOrEqual(t, conversions.Load(), int32(8))
	same, err := e.In(stored)
	require.NoError(t, err)
	require.Same(t, e, same)
}

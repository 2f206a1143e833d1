package local

import (
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// indexer implements client-go's store of a kind, which listers read, on the shared cache.
type indexer struct{ *informer }

var _ toolscache.Indexer = indexer{}

var errReadOnly = errors.New("the shared cache is read-only: write through the client")

func (indexer) Add(any) error               { return errReadOnly }
func (indexer) Update(any) error            { return errReadOnly }
func (indexer) Delete(any) error            { return errReadOnly }
func (indexer) Replace([]any, string) error { return errReadOnly }
func (indexer) Resync() error               { return nil }
func (indexer) Bookmark(string)             {}

func (x indexer) LastStoreSyncResourceVersion() string { return x.LastSyncResourceVersion() }

func (x indexer) objects(entries []*cache.Entry) []any {
	out := make([]any, 0, len(entries))
	for _, e := range entries {
		if o, err := x.view.of(e); err == nil {
			out = append(out, o)
		}
	}
	return out
}

func (x indexer) in(namespace string) []*cache.Entry {
	entries, _ := x.cache.List(stored(x.row), cache.Query{Namespace: namespace})
	return entries
}

func (x indexer) List() []any { return x.objects(x.in("")) }

func (x indexer) ListKeys() []string { return keys(x.in("")) }

func keys(entries []*cache.Entry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i], _ = toolscache.MetaNamespaceKeyFunc(e.Object)
	}
	return out
}

func (x indexer) Get(obj any) (any, bool, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, false, err
	}
	return x.get(m.GetNamespace(), m.GetName())
}

func (x indexer) GetByKey(key string) (any, bool, error) {
	ns, name, err := toolscache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, false, err
	}
	return x.get(ns, name)
}

func (x indexer) get(ns, name string) (any, bool, error) {
	e := x.cache.Get(stored(x.row), ns, name)
	if e == nil {
		return nil, false, nil
	}
	o, err := x.view.of(e)
	return o, err == nil, err
}

func informerIndex(k informerKey, name string) string {
	return fmt.Sprintf("informer:%d:%s:%s", k.form, k.gvk.GroupVersion(), name)
}

// AddIndexers adds indexes. As in client-go, their names must be new.
func (x indexer) AddIndexers(add toolscache.Indexers) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range add {
		if x.indexers[name] != nil && name != toolscache.NamespaceIndex {
			return fmt.Errorf("%s already has an index %q", x.name, name)
		}
	}
	for name, f := range add {
		if name == toolscache.NamespaceIndex {
			continue
		}
		err := x.addIndex(stored(x.row), informerIndex(x.key, name), func(o ctrl.Object) []string {
			seen, err := x.view.of(&cache.Entry{Object: o})
			if err != nil {
				return nil
			}
			values, _ := f(seen)
			return values
		})
		if err != nil {
			return err
		}
		x.indexers[name] = f
	}
	return nil
}

func (x indexer) GetIndexers() toolscache.Indexers {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make(toolscache.Indexers, len(x.indexers))
	maps.Copy(out, x.indexers)
	return out
}

func (x indexer) indexFunc(name string) toolscache.IndexFunc {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.indexers[name]
}

func (x indexer) byIndex(name, value string) ([]*cache.Entry, error) {
	if name == toolscache.NamespaceIndex {
		return x.in(value), nil
	}
	entries, _, err := x.cache.ByIndex(stored(x.row), informerIndex(x.key, name), value)
	return entries, err
}

func (x indexer) ByIndex(name, value string) ([]any, error) {
	entries, err := x.byIndex(name, value)
	return x.objects(entries), err
}

func (x indexer) IndexKeys(name, value string) ([]string, error) {
	entries, err := x.byIndex(name, value)
	return keys(entries), err
}

func (x indexer) Index(name string, obj any) ([]any, error) {
	f := x.indexFunc(name)
	if f == nil {
		return nil, fmt.Errorf("%s has no index %q", x.name, name)
	}
	values, err := f(obj)
	if err != nil {
		return nil, err
	}
	var out []any
	seen := map[string]bool{}
	for _, v := range values {
		entries, err := x.byIndex(name, v)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !seen[e.Key] {
				seen[e.Key] = true
				out = append(out, x.objects([]*cache.Entry{e})...)
			}
		}
	}
	return out, nil
}

func (x indexer) ListIndexFuncValues(name string) []string {
	f := x.indexFunc(name)
	seen := map[string]bool{}
	var out []string
	for _, o := range x.List() {
		if f == nil {
			break
		}
		values, _ := f(o)
		for _, v := range values {
			if !seen[v] {
				seen[v] = true
				out = append(out, v)
			}
		}
	}
	return out
}

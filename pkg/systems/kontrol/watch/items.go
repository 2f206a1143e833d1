package watch

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// selector selects the objects that Kontrol applied, by their label.
var selector = func() labels.Selector {
	r, err := labels.NewRequirement(kontrol.LabelID, selection.Exists, nil)
	if err != nil {
		return labels.Nothing()
	}
	return labels.NewSelector().Add(*r)
}()

// item is what is known of an object. The object exists if version is set.
type item struct {
	pairs   []Pair // the pairs that want it
	version string
	// decoded or full holds the object until it is recorded.
	decoded  *unstructured.Unstructured
	full     encoded
	recorded uint64
}

const (
	// maxDecoded is how many objects of a watch are held decoded. Few are about to be recorded; the others wait as
	// JSON.
	maxDecoded = 128
	// maxDecodedSize is the approximate JSON size up to which an object is held decoded, in bytes.
	maxDecodedSize = 64 << 10
	// maxUnwanted limits the bytes held for objects that no Resource wants yet. After a start, objects are listed
	// before their Resources are read. Other unwanted objects may belong to another Kontrol, or to an attacker who
	// tries to exhaust memory.
	maxUnwanted = 16 << 20
)

// hold stores the object of an item. Unwanted objects beyond maxUnwanted are not stored; they are read when a
// Resource wants them. The caller holds the watcher's lock.
func (w *watcher) hold(i *item, o *unstructured.Unstructured) {
	if len(i.pairs) == 0 {
		if full := encode(o); w.unwanted+len(full) <= maxUnwanted {
			i.full = full
			w.unwanted += len(full)
		}
		return
	}
	if w.decoded < maxDecoded && fits(o.Object, maxDecodedSize) > 0 {
		w.decoded++
		i.decoded = &unstructured.Unstructured{Object: o.Object} // o may point into a list, which must be freed
		return
	}
	i.full = encode(o)
}

// fits subtracts the approximate JSON size of a value from left. The result is not positive if the value is
// larger.
func fits(v any, left int) int {
	const each = 8 // quotes, separators, numbers
	left -= each
	switch v := v.(type) {
	case string:
		left -= len(v)
	case map[string]any:
		for key, e := range v {
			if left = fits(e, left-len(key)); left <= 0 {
				break
			}
		}
	case []any:
		for _, e := range v {
			if left = fits(e, left); left <= 0 {
				break
			}
		}
	}
	return left
}

// release drops the encoded object of an item. The caller holds the lock.
func (w *watcher) release(i *item) {
	if i.decoded != nil {
		w.decoded--
	}
	if len(i.pairs) == 0 {
		w.unwanted -= len(i.full)
	}
	i.decoded, i.full = nil, nil
}

// object returns the object of an item; nil if it is not stored.
func (i *item) object() *unstructured.Unstructured {
	if i.decoded != nil {
		return i.decoded
	}
	return i.full.object()
}

// encoded is an object as JSON, which needs a fifth of the decoded object's memory.
type encoded []byte

func encode(o *unstructured.Unstructured) encoded {
	raw, err := o.MarshalJSON()
	if err != nil {
		return nil
	}
	return raw
}

func (s encoded) object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if s == nil || o.UnmarshalJSON(s) != nil {
		return nil
	}
	return o
}

func (w *watcher) want(at types.NamespacedName, p Pair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[at]
	if i == nil {
		i = &item{}
		w.items[at] = i
	}
	i.recorded = 0 // the value was for the other pairs
	if len(i.pairs) == 0 {
		w.unwanted -= len(i.full)
	}
	i.pairs = append(i.pairs, p)
	w.wanted++
}

// unwant removes a pair, and reports whether the watcher has no pairs left.
func (w *watcher) unwant(at types.NamespacedName, p Pair) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[at]
	if i == nil || !slices.Contains(i.pairs, p) {
		return w.wanted == 0
	}
	if len(i.pairs) == 1 {
		w.release(i)
	}
	i.pairs = slices.DeleteFunc(i.pairs, func(o Pair) bool { return o == p })
	w.wanted--
	if len(i.pairs) == 0 && (i.version == "" || w.lost[at]) {
		w.forget(at, i)
	}
	return w.wanted == 0
}

// forget drops an item. The caller holds the lock.
func (w *watcher) forget(at types.NamespacedName, i *item) {
	if i.version != "" {
		w.present--
	}
	w.release(i)
	delete(w.items, at)
	delete(w.lost, at)
}

func (w *watcher) look(at types.NamespacedName) Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Seen{Known: w.known, Reason: w.reason, Error: w.error}
	if i := w.items[at]; i != nil && i.version != "" {
		s.Object = i.object()
		if s.Object == nil {
			s.Recorded = max(i.recorded, 1)
		}
	}
	return s
}

func (w *watcher) recorded(at types.NamespacedName, version string, by uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := w.items[at]; i != nil && i.version == version && len(i.pairs) == 1 {
		w.release(i)
		i.recorded = by
	}
}

// put records an object's current state, nil if it does not exist. It returns false if maxObjects is reached.
func (w *watcher) put(at types.NamespacedName, o *unstructured.Unstructured) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set(at, o)
}

// putOver is put, unless the known version differs from was: then the watch has reported a change, which may be newer.
func (w *watcher) putOver(at types.NamespacedName, was string, o *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versionOf(at) == was {
		w.set(at, o)
	}
}

// putLost is put, unless the object has its label again, so that the shared watch follows it, or a later version
// is known.
func (w *watcher) putLost(at types.NamespacedName, version string, o *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost[at] && !older(version, w.versionOf(at)) {
		w.set(at, o)
	}
}

func (w *watcher) version(at types.NamespacedName) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.versionOf(at)
}

// versionOf is version for a caller that holds the lock.
func (w *watcher) versionOf(at types.NamespacedName) string {
	if i := w.items[at]; i != nil {
		return i.version
	}
	return ""
}

// set is put for a caller that holds the lock.
func (w *watcher) set(at types.NamespacedName, o *unstructured.Unstructured) bool {
	i := w.items[at]
	labelled := o != nil && selector.Matches(labels.Set(o.GetLabels()))
	switch {
	case o == nil || !labelled && (i == nil || len(i.pairs) == 0):
		if i == nil {
			return true
		}
		if len(i.pairs) == 0 {
			w.forget(at, i)
			return true
		}
		if i.version != "" {
			w.present--
		}
		w.release(i)
		*i = item{pairs: i.pairs}
		delete(w.lost, at)
		return true
	case (i == nil || i.version == "") && w.present >= maxObjects:
		return false
	case i == nil:
		i = &item{}
		w.items[at] = i
	}
	if i.version == "" {
		w.present++
	}
	w.release(i)
	*i = item{pairs: i.pairs, version: o.GetResourceVersion()}
	w.hold(i, o)
	if delete(w.lost, at); !labelled {
		w.lost[at] = true
	}
	return true
}

// same reports whether the object is known in this version and has its label.
func (w *watcher) same(at types.NamespacedName, version string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.items[at]
	return i != nil && i.version == version && !w.lost[at] && version != ""
}

// others returns the known objects that are not in found.
func (w *watcher) others(found map[types.NamespacedName]bool) (list []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, i := range w.items {
		if i.version != "" && !found[at] {
			list = append(list, at)
		}
	}
	return list
}

func (w *watcher) unlabelled() []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.lost))
}

func (w *watcher) isLost(at types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost[at]
}

func (w *watcher) all() {
	w.mu.Lock()
	pairs := make([]Pair, 0, w.wanted)
	for _, i := range w.items {
		pairs = append(pairs, i.pairs...)
	}
	w.mu.Unlock()
	for _, p := range pairs {
		w.hub.changed(p)
	}
}

func (w *watcher) notify(at types.NamespacedName) {
	w.mu.Lock()
	var pairs []Pair
	if i := w.items[at]; i != nil {
		pairs = slices.Clone(i.pairs)
	}
	w.mu.Unlock()
	for _, p := range pairs {
		w.hub.changed(p)
	}
}

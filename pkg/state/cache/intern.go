package cache

import (
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxInterned limits the number of shared field sets and strings, maxInternedBytes their total size.
	maxInterned      = 8192
	maxInternedBytes = 2 << 20
	// maxInternedSet is the size in bytes of the largest managed field set that is shared.
	maxInternedSet = 8 << 10
)

// interned shares equal managed fields and namespaces between objects: the pods of a Deployment have the same ones. At
// a limit it is emptied, which also releases values that are no longer used.
type interned struct {
	mu    sync.Mutex
	sets  map[string]*metav1.FieldsV1
	names map[string]string
	time  *metav1.Time // the last timestamp
	last  []metav1.ManagedFieldsEntry
	bytes int

	scratch []metav1.ManagedFieldsEntry
}

// share makes o share its name with key, and its namespace and managed fields with other objects. o must be new: share
// replaces fields of its metadata, but does not modify what they point to.
func (n *interned) share(key string, o client.Object) {
	if _, ok := o.(runtime.Unstructured); ok {
		return
	}
	if name := o.GetName(); strings.HasSuffix(key, name) {
		o.SetName(key[len(key)-len(name):])
	}
	managed, namespace := o.GetManagedFields(), o.GetNamespace()
	if len(managed) == 0 && namespace == "" {
		return
	}
	n.mu.Lock()
	namespace = n.name(namespace)
	managed = n.managers(managed)
	n.mu.Unlock()
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	if len(managed) > 0 {
		o.SetManagedFields(managed)
	}
}

// managers returns an equal list of shared values: the previously returned one if that is equal.
func (n *interned) managers(list []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	n.scratch = append(n.scratch[:0], list...)
	for i := range n.scratch {
		m := &n.scratch[i]
		m.FieldsV1 = n.set(m.FieldsV1)
		m.Manager, m.APIVersion, m.FieldsType, m.Subresource = n.name(m.Manager), n.name(m.APIVersion), n.name(m.FieldsType),
			n.name(m.Subresource)
		if n.time == nil || m.Time == nil || *n.time != *m.Time {
			n.time = m.Time
		}
		m.Time = n.time
		m.Operation = metav1.ManagedFieldsOperationType(n.name(string(m.Operation)))
	}
	if !slices.Equal(n.last, n.scratch) { // FieldsV1 and Time are compared by pointer
		n.last = slices.Clip(slices.Clone(n.scratch))
	}
	clear(n.scratch)
	return n.last
}

func (n *interned) set(f *metav1.FieldsV1) *metav1.FieldsV1 {
	if f == nil {
		return nil
	}
	raw := f.GetRawBytes()
	if len(raw) > maxInternedSet {
		return f
	}
	if known := n.sets[string(raw)]; known != nil {
		return known
	}
	n.room(2 * len(raw))
	n.sets[string(raw)] = f
	return f
}

func (n *interned) name(s string) string {
	if s == "" || len(s) > metaNameLimit {
		return s
	}
	if known, ok := n.names[s]; ok {
		return known
	}
	n.room(len(s))
	n.names[s] = s
	return s
}

// metaNameLimit is the length in bytes of the longest string that is shared; field managers have at most 128.
const metaNameLimit = 256

// room accounts for a new value of size bytes. At a limit it empties the tables first.
func (n *interned) room(size int) {
	if n.sets == nil || len(n.sets)+len(n.names) >= maxInterned || n.bytes+size > maxInternedBytes {
		n.sets, n.names, n.bytes = map[string]*metav1.FieldsV1{}, map[string]string{}, 0
	}
	n.bytes += size
}

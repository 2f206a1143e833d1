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
	// maxInterned limits the number of managed field sets and names that are shared, maxInternedBytes what they have
	// together.
	maxInterned      = 8192
	maxInternedBytes = 2 << 20
	// maxInternedSet is the largest set that is shared.
	maxInternedSet = 8 << 10
)

// interned are the managed fields of objects, which are the same for all objects that were made alike, such as the pods
// of a Deployment, and their namespaces: each is held once. When a limit is reached the table starts anew, which
// forgets unused ones.
type interned struct {
	mu    sync.Mutex
	sets  map[string]*metav1.FieldsV1
	names map[string]string
	time  *metav1.Time // the last one
	last  []metav1.ManagedFieldsEntry
	bytes int

	scratch []metav1.ManagedFieldsEntry
}

// share makes the object of a key share its name with the key, and its namespace and managed fields with other objects.
// The object must be new: its metadata is changed, but nothing that it refers to.
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

// managers returns an equal list: the last one that it returned, if it is that.
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
	if !slices.Equal(n.last, n.scratch) { // by pointers, where there are any
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

// metaNameLimit is the longest name that is shared, in bytes; field managers have at most 128.
const metaNameLimit = 256

// room makes room for one more of a size.
func (n *interned) room(size int) {
	if n.sets == nil || len(n.sets)+len(n.names) >= maxInterned || n.bytes+size > maxInternedBytes {
		n.sets, n.names, n.bytes = map[string]*metav1.FieldsV1{}, map[string]string{}, 0
	}
	n.bytes += size
}

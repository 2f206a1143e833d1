package builtin

import (
	"bytes"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// shared makes the Kontrol objects that the cache holds share what they have in common. What a cluster has is mostly what was applied, the fields that
// were applied are the same for all objects made alike, and so are labels and the times of writes in a burst. There are many such objects, and people
// read few of them at a time, so their encodings are not kept either.
type shared struct {
	mu      sync.Mutex
	texts   map[uint64]text // by hash
	labels  map[string]map[string]string
	managed map[string][]metav1.ManagedFieldsEntry
}

// text is a text that is shared for as long as any object has it.
type text struct {
	first weak.Pointer[byte]
	size  int
}

const (
	// maxTexts and maxAlike limit what is remembered. Beyond it the memory begins anew: what is shared stays so, and what comes is shared with what
	// comes after it.
	maxTexts = 1 << 16
	maxAlike = 1 << 10
	// minText is the shortest text that is shared: what is remembered of it takes about as much.
	minText = 128
)

func newShared() *shared { return &shared{} }

// pack sets the form in which the cache holds objects of a row.
func (s *shared) pack(r *kind.Resource) *kind.Resource {
	r.Pack = s.share
	return r
}

// share changes an object that nobody else has yet. What it refers to may be others', and is not changed.
func (s *shared) share(o client.Object) client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := o.(type) {
	case *kontrol.Resource:
		s.meta(&o.ObjectMeta)
	case *kontrol.AppliedState:
		s.meta(&o.ObjectMeta)
		o.State.Object.Raw, o.State.Fields.Raw = s.text(o.State.Object.Raw), s.text(o.State.Fields.Raw)
	case *kontrol.CurrentState:
		s.meta(&o.ObjectMeta)
		o.State.Object.Raw = s.text(o.State.Object.Raw)
	}
	return o
}

var textSeed = maphash.MakeSeed()

// text returns an equal text that others have, or the same.
func (s *shared) text(b []byte) []byte {
	if len(b) < minText {
		return b
	}
	sum := maphash.Bytes(textSeed, b)
	if t, ok := s.texts[sum]; ok && t.size == len(b) {
		if first := t.first.Value(); first != nil {
			if known := unsafe.Slice(first, t.size); bytes.Equal(known, b) {
				return known
			}
		}
	}
	if s.texts == nil || len(s.texts) >= maxTexts {
		s.texts = map[uint64]text{}
	}
	s.texts[sum] = text{weak.Make(&b[0]), len(b)}
	return b
}

// meta shares labels and managed fields.
func (s *shared) meta(m *metav1.ObjectMeta) {
	if len(m.Labels) > 0 {
		key := labelsKey(m.Labels)
		m.Labels, s.labels = alike(s.labels, key, m.Labels)
	}
	if len(m.ManagedFields) > 0 {
		key := managedKey(m.ManagedFields)
		m.ManagedFields, s.managed = alike(s.managed, key, m.ManagedFields)
	}
}

// alike returns what is known by a key, or else v, and what is known then.
func alike[T any](known map[string]T, key string, v T) (T, map[string]T) {
	if have, ok := known[key]; ok {
		return have, known
	}
	if known == nil || len(known) >= maxAlike {
		known = map[string]T{}
	}
	known[key] = v
	return v, known
}

// labelsKey identifies labels.
func labelsKey(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(strconv.Quote(k))
		b.WriteString(strconv.Quote(labels[k]))
	}
	return b.String()
}

// managedKey identifies managed fields.
func managedKey(list []metav1.ManagedFieldsEntry) string {
	var b strings.Builder
	for i := range list {
		m := &list[i]
		for _, part := range []string{m.Manager, string(m.Operation), m.APIVersion, m.FieldsType, m.Subresource} {
			b.WriteString(strconv.Quote(part))
		}
		if m.Time != nil {
			b.WriteString(strconv.FormatInt(m.Time.UnixNano(), 36))
		}
		b.WriteByte(';')
		if m.FieldsV1 != nil {
			b.WriteString(strconv.Itoa(len(m.FieldsV1.GetRawBytes())))
			b.WriteByte(':')
			b.Write(m.FieldsV1.GetRawBytes())
		}
	}
	return b.String()
}

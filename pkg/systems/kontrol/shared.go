package kontrol

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
)

// shared is what the Kontrol objects that the cache holds have in common. What a cluster has is mostly what was
// applied, the fields that were applied are the same for all objects made alike, and so are labels and the conditions
// of what is in sync.
type shared struct {
	seed maphash.Seed

	mu         sync.Mutex
	texts      map[uint64]text // by hash
	likes      map[string]client.Object
	labels     map[string]map[string]string
	managed    map[string][]metav1.ManagedFieldsEntry
	conditions map[string][]metav1.Condition
}

// text is a text that is shared for as long as any object has it.
type text struct {
	first weak.Pointer[byte]
	size  int
}

const (
	// maxTexts and maxAlike limit what is remembered. Beyond it the memory begins anew: what is shared stays so, and what
	// comes is shared with what comes after it.
	maxTexts = 1 << 16
	maxAlike = 1 << 10
	// maxKey is the length, in bytes, of the longest key by which something is remembered: what is larger is not shared.
	// It stays when its objects are gone.
	maxKey = 4 << 10
	// minText is the shortest text that is shared: what is remembered of it takes about as much.
	minText = 128
)

func newShared() *shared { return &shared{seed: maphash.MakeSeed()} }

// share changes an object that nobody else has yet. What it refers to may be others', and is not changed.
func (s *shared) share(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := o.(type) {
	case *kontrol.Resource:
		s.quiet(&o.Status)
	case *kontrol.AppliedState:
		o.State.Object.Raw, o.State.Fields.Raw = s.text(o.State.Object.Raw), s.text(o.State.Fields.Raw)
	case *kontrol.CurrentState:
		o.State.Object.Raw = s.text(o.State.Object.Raw)
	}
}

// like returns the object that is known by a key, or else o.
func (s *shared) like(key string, o client.Object) client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, s.likes = alike(s.likes, key, o)
	return o
}

// meta shares labels and managed fields.
func (s *shared) meta(own *ownMeta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(own.labels) > 0 {
		own.labels, s.labels = alike(s.labels, labelsKey(own.labels), own.labels)
	}
	if len(own.managed) > 0 {
		own.managed, s.managed = alike(s.managed, managedKey(own.managed), own.managed)
	}
}

// quiet shares the conditions of a Resource of which there is nothing to say.
func (s *shared) quiet(of *kontrol.ResourceStatus) {
	var key strings.Builder
	for i := range of.Conditions {
		c := &of.Conditions[i]
		if c.Message != "" {
			return
		}
		for _, part := range []string{c.Type, string(c.Status), c.Reason} {
			key.WriteString(strconv.Quote(part))
		}
		key.WriteString(strconv.FormatInt(c.LastTransitionTime.UnixNano(), 36))
		key.WriteByte(';')
		key.WriteString(strconv.FormatInt(c.ObservedGeneration, 36))
	}
	if len(of.Conditions) > 0 {
		of.Conditions, s.conditions = alike(s.conditions, key.String(), slices.Clip(of.Conditions))
	}
}

// text returns an equal text that others have, or the same.
func (s *shared) text(b []byte) []byte {
	if len(b) < minText {
		return b
	}
	sum := maphash.Bytes(s.seed, b)
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

// alike returns what is known by a key, or else v, and what is known then: at most maxAlike keys of at most maxKey
// bytes.
func alike[T any](known map[string]T, key string, v T) (T, map[string]T) {
	if len(key) > maxKey {
		return v, known
	}
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

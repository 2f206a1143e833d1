package cache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Entry is one object at one revision, with its encodings, each computed at most once, on first use.
type Entry struct {
	Object   client.Object // resourceVersion is set; TypeMeta is set
	Key      string
	Revision int64

	row   *kind.Resource
	full  atomic.Pointer[[]byte]
	item  atomic.Pointer[[]byte]
	proto atomic.Pointer[[]byte]
	other atomic.Pointer[converted]
	sum   uint64 // of the JSON when the entry was created, if CheckImmutable is set
}

// tail is the part of the key after the kind's prefix: "namespace/name", or "name".
func (e *Entry) tail() string { return e.Key[len(kind.Root)+len(e.row.Storage.Keys)+1:] }

// JSON is the object's encoding with kind and apiVersion first, without a trailing newline. Shared: do not modify.
func (e *Entry) JSON() []byte {
	if b := e.full.Load(); b != nil {
		return *b
	}
	b := e.marshal()
	e.full.CompareAndSwap(nil, &b)
	return *e.full.Load()
}

// JSONItem is JSON without kind and apiVersion, as upstream encodes the items of a list.
func (e *Entry) JSONItem() []byte {
	if b := e.item.Load(); b != nil {
		return *b
	}
	full := e.JSON()
	n := e.typeMetaLen(full)
	b := full
	if n > 0 {
		b = append(append(make([]byte, 0, 1+len(full)-n), '{'), full[n:]...)
	}
	e.item.CompareAndSwap(nil, &b)
	return *e.item.Load()
}

// typeMetaLen is the length of `{"kind":"Pod","apiVersion":"v1",` if the encoding begins with it, as it does for
// all kinds with a Go type.
func (e *Entry) typeMetaLen(full []byte) int {
	var buf [160]byte
	head := append(append(append(buf[:0], `{"kind":`...), strconv.Quote(e.row.Kind)...), `,"apiVersion":"`...)
	if e.row.Group != "" {
		head = append(append(head, e.row.Group...), '/')
	}
	head = append(append(head, e.row.Version...), `",`...)
	if bytes.HasPrefix(full, head) {
		return len(head)
	}
	return 0
}

// marshal encodes as upstream's serializer does, without its trailing newline.
func (e *Entry) marshal() []byte {
	b, err := json.Marshal(e.Object)
	if err != nil {
		// The object was decoded from an encoding of its own type, so it can be encoded.
		panic(fmt.Sprintf("cache: %s has no JSON form: %v", e.Key, err))
	}
	return b
}

// Proto is the bare protobuf message (no envelope); nil if the kind has none.
func (e *Entry) Proto() []byte {
	if b := e.proto.Load(); b != nil {
		return *b
	}
	b, err := e.row.Message(e.Object)
	if err != nil {
		panic(fmt.Sprintf("cache: %s has no protobuf form: %v", e.Key, err))
	}
	e.proto.CompareAndSwap(nil, &b)
	return *e.proto.Load()
}

// converted is a linked list of an entry's conversions to other versions.
type converted struct {
	*Entry
	next *converted
}

// In returns the entry in the version of row, a row of the same resource: the entry itself, or a conversion that is done once,
// on first use, and shared with its encodings by all readers.
func (e *Entry) In(row *kind.Resource) (*Entry, error) {
	if e.row == row && !row.PerVersion || row.Serves(e.Object) {
		return e, nil
	}
	if o := e.converted(row); o != nil {
		return o, nil
	}
	obj, err := row.From(e.Object)
	if err != nil {
		return nil, err
	}
	return e.keep(row, obj), nil
}

// InAll is In for all entries of a list, which it does not modify. Those that must be converted first are converted together.
func InAll(row *kind.Resource, entries []*Entry) ([]*Entry, error) {
	var missing []client.Object
	var at []int
	var out []*Entry
	for i, e := range entries {
		if row.Serves(e.Object) {
			continue
		}
		if out == nil {
			out = append([]*Entry(nil), entries...)
		}
		if row.ExternalAll == nil || e.converted(row) != nil {
			in, err := e.In(row)
			if err != nil {
				return nil, err
			}
			out[i] = in
			continue
		}
		missing, at = append(missing, e.Object), append(at, i)
	}
	if out == nil {
		return entries, nil
	}
	if len(missing) == 0 {
		return out, nil
	}
	made, err := row.ExternalAll(missing)
	if err != nil {
		return nil, err
	}
	for i, obj := range made {
		out[at[i]] = entries[at[i]].keep(row, obj)
	}
	return out, nil
}

// converted returns the entry's conversion to row, if it was made.
func (e *Entry) converted(row *kind.Resource) *Entry {
	for o := e.other.Load(); o != nil; o = o.next {
		if o.row == row {
			return o.Entry
		}
	}
	return nil
}

// keep remembers obj as the entry's conversion to row, unless there is one already, and returns the one that is shared.
func (e *Entry) keep(row *kind.Resource, obj client.Object) *Entry {
	for {
		if o := e.converted(row); o != nil {
			return o
		}
		first := e.other.Load()
		made := &converted{Entry: NewEntry(row, e.Key, obj, e.Revision)}
		// Versions that are still served come first; conversions for replaced rows are dropped.
		if made.next = first; first != nil && first.row.Version == row.Version && first.row.Group == row.Group {
			made.next = first.next
		}
		if e.other.CompareAndSwap(first, made) {
			return made.Entry
		}
	}
}

// NewEntry returns an entry that is not part of the cache: an object at an older revision, or in a version other than
// the stored one (row is that version's row). obj must have its resourceVersion and TypeMeta set, and is immutable from now on.
func NewEntry(row *kind.Resource, key string, obj client.Object, rev int64) *Entry {
	return &Entry{Object: obj, Key: key, Revision: rev, row: row}
}

// at is the entry with another revision, as reported by a deletion. It is a shallow copy.
func (e *Entry) at(rev int64) *Entry {
	return &Entry{Object: kind.AtRevision(e.Object, rev), Key: e.Key, Revision: rev, row: e.row}
}

var seed = maphash.MakeSeed()

func (e *Entry) hash() uint64 { return maphash.Bytes(seed, e.marshal()) }

// verify panics if a reader modified the object, which all readers share.
func (e *Entry) verify() {
	if e.sum != 0 && e.sum != e.hash() {
		panic(fmt.Sprintf("cache: %s at revision %d was changed by a reader: make a DeepCopy first. It is now %s", e.Key, e.Revision, e.marshal()))
	}
}

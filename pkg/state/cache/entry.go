package cache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Entry is one object at one revision. Its encodings are computed on first use and kept while there is room.
type Entry struct {
	Object   client.Object // resourceVersion is set; TypeMeta is set
	Key      string
	Revision int64

	row    *kind.Resource
	kept   slots
	keeper *keeper     // nil: encodings are kept for the entry's lifetime
	read   atomic.Bool // an encoding was read since the keeper last checked
	stored uint32      // checksum of the stored value; 0 if unknown
	other  atomic.Pointer[converted]
	sum    uint64 // hash of the JSON when the entry was created, if CheckImmutable is set
}

// tail is the part of the key after the kind's prefix: "namespace/name", or "name".
func (e *Entry) tail() string { return e.Key[len(kind.Root)+len(e.row.Storage.Keys)+1:] }

// JSON is the object's encoding with kind and apiVersion first, without a trailing newline. Shared: do not modify.
func (e *Entry) JSON() []byte {
	if b := e.load(encodingJSON); b != nil {
		return b
	}
	return e.keep(encodingJSON, e.marshal(nil))
}

// JSONItem is JSON without kind and apiVersion, in two parts, as upstream encodes list items. rest is shared: do not
// modify. Items of a long list are encoded in its scratch: rest is then valid until the next item. scratch may be nil.
func (e *Entry) JSONItem(scratch *Scratch) (begin string, rest []byte) {
	full := e.load(encodingJSON)
	switch {
	case full != nil:
	case scratch == nil:
		full = e.JSON()
	default:
		full = e.keepCopy(encodingJSON, e.marshal(&scratch.json))
	}
	if rest, ok := e.withoutTypeMeta(full); ok {
		return "{", rest
	}
	return "", full
}

// withoutTypeMeta cuts `{"kind":"Pod","apiVersion":"v1",` off. Encodings of kinds with a Go type begin so.
func (e *Entry) withoutTypeMeta(full []byte) (rest []byte, ok bool) {
	rest = full
	slash := ""
	if e.row.Group != "" {
		slash = "/"
	}
	for _, part := range [...]string{
		`{"kind":"`, e.row.Kind, `","apiVersion":"`, e.row.Group, slash, e.row.Version, `",`,
	} {
		if len(rest) < len(part) || string(rest[:len(part)]) != part {
			return nil, false
		}
		rest = rest[len(part):]
	}
	return rest, true
}

// marshal encodes as upstream's serializer does, without the trailing newline. The result may be part of scratch,
// which may be nil.
func (e *Entry) marshal(scratch *bytes.Buffer) (b []byte) {
	obj := e.Object
	if e.row.Unpack != nil {
		obj = e.row.Unpack(obj)
	}
	var err error
	if _, untyped := obj.(*unstructured.Unstructured); scratch == nil || untyped {
		b, err = kind.MarshalJSON(obj)
	} else {
		scratch.Reset()
		err = json.NewEncoder(scratch).Encode(obj)
		b = bytes.TrimSuffix(scratch.Bytes(), []byte("\n"))
	}
	if err != nil {
		// The object was decoded from its type's encoding, so it can be encoded.
		panic(fmt.Sprintf("cache: %s has no JSON form: %v", e.Key, err))
	}
	return b
}

// Proto is the bare protobuf message (no envelope); nil if the kind has none.
func (e *Entry) Proto() []byte { return e.ProtoItem(nil) }

// ProtoItem is Proto for an item of a list; see JSONItem for scratch.
func (e *Entry) ProtoItem(scratch *Scratch) []byte {
	if b := e.load(encodingProto); b != nil {
		return b
	}
	var in []byte
	if scratch != nil {
		in = scratch.proto
	}
	b, err := e.row.MessageIn(in, e.Object)
	if err != nil {
		panic(fmt.Sprintf("cache: %s has no protobuf form: %v", e.Key, err))
	}
	if scratch == nil {
		return e.keep(encodingProto, b)
	}
	scratch.proto = b
	return e.keepCopy(encodingProto, b)
}

// ProtoSize is the length of Proto.
func (e *Entry) ProtoSize() int {
	if b := e.load(encodingProto); b != nil {
		return len(b)
	}
	return e.row.MessageSize(e.Object)
}

// converted is a linked list of an entry's conversions to other versions.
type converted struct {
	*Entry
	next *converted
}

// In returns the entry in the version of row, a row of the same resource: the entry itself, or a conversion that is
// made once, on first use, and shared with its encodings by all readers.
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
	return e.keepConverted(row, obj), nil
}

// Whole returns the entry with its object as the kind's Go type. It is the entry itself unless the cache holds such
// objects packed.
func (e *Entry) Whole() *Entry {
	if e.row.Unpack == nil {
		return e
	}
	o := e.row.Unpack(e.Object)
	if o == e.Object {
		return e
	}
	return NewEntry(e.row, e.Key, o, e.Revision)
}

// InAll is In for all entries of a list, which it does not modify. Missing conversions are made in one call.
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
		out[at[i]] = entries[at[i]].keepConverted(row, obj)
	}
	return out, nil
}

func (e *Entry) converted(row *kind.Resource) *Entry {
	for o := e.other.Load(); o != nil; o = o.next {
		if o.row == row {
			return o.Entry
		}
	}
	return nil
}

// keepConverted keeps obj as the entry's conversion to row, unless there is one already, and returns the kept one.
func (e *Entry) keepConverted(row *kind.Resource, obj client.Object) *Entry {
	for {
		if o := e.converted(row); o != nil {
			return o
		}
		first := e.other.Load()
		made := &converted{Entry: NewEntry(row, e.Key, obj, e.Revision)}
		made.keeper = e.keeper
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
// the stored one. row is the row of the object's version. obj must have its resourceVersion and TypeMeta set, and must
// not be modified any more.
func NewEntry(row *kind.Resource, key string, obj client.Object, rev int64) *Entry {
	return &Entry{Object: obj, Key: key, Revision: rev, row: row}
}

// at is a shallow copy of the entry with another revision, for Deleted events.
func (e *Entry) at(rev int64) *Entry {
	return &Entry{Object: kind.AtRevision(e.Object, rev), Key: e.Key, Revision: rev, row: e.row, keeper: e.keeper}
}

var seed = maphash.MakeSeed()

func (e *Entry) hash() uint64 { return maphash.Bytes(seed, e.marshal(nil)) }

// sumOf returns a checksum, which is never 0.
func sumOf(value []byte) uint32 { return uint32(maphash.Bytes(seed, value)) | 1 }

// MayBe reports whether value may be the entry's stored value. If not, it certainly is not.
func (e *Entry) MayBe(value []byte) bool { return e.stored == 0 || e.stored == sumOf(value) }

// verify panics if a reader modified the shared object.
func (e *Entry) verify() {
	if e.sum != 0 && e.sum != e.hash() {
		panic(fmt.Sprintf("cache: %s at revision %d was changed by a reader: make a DeepCopy first. It is now %s", e.Key,
			e.Revision, e.marshal(nil)))
	}
}

package kind

import "errors"

// ErrCompacted means that the requested history has been compacted.
var ErrCompacted = errors.New("the revision asked for has been compacted")

// KV is one stored value.
type KV struct {
	Key   string
	Value []byte // never changed after it was made; may be shared
	// Revision is the store's revision at which this value was written.
	Revision int64
	// Err says why the stored bytes could not be read, such as a missing encryption key; Value is nil then.
	Err error
}

// Change is one change of a stored value. Value is empty for a deletion, Prev is the
// value before the change, with a Revision of 0 if there was none or it was not asked for.
type Change struct {
	KV
	Deleted bool
	Prev    KV
}

// Batch is the changes of one or more whole revisions, in order.
type Batch struct {
	Events   []Change
	Revision int64 // all revisions up to and with this one have been reported
}

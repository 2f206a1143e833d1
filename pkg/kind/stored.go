package kind

import "errors"

// ErrCompacted means that the requested history has been compacted.
var ErrCompacted = errors.New("the requested revision has been compacted")

// ErrFuture means that the requested revision cannot be read yet.
var ErrFuture = errors.New("the requested revision is in the future")

// KV is a stored value.
type KV struct {
	Key   string
	Value []byte // immutable; may be shared
	// Revision is the store's revision of the write.
	Revision int64
	// Err is set if the stored bytes could not be read, for instance because of a missing encryption key. Value is nil
	// then.
	Err error
}

// Change is a change of a stored value. Value is empty for a deletion. Prev is the previous value; its Revision is 0 if
// there was none or it was not requested.
type Change struct {
	KV
	Deleted bool
	Prev    KV
}

// Batch has the changes of one or more complete revisions, in order.
type Batch struct {
	Events   []Change
	Revision int64 // all revisions up to and including this one have been reported
}

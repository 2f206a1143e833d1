package control

import "time"

// Reports of `coracle ctl inspect`, which the API server serves below /debug/coracle/. Sizes are in bytes. Every list
// is bounded.

// CacheReport is /debug/coracle/cache.
type CacheReport struct {
	Revision int64       `json:"revision"`
	Kinds    []CacheKind `json:"kinds"`
}

// CacheKind describes the cache of one kind.
type CacheKind struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	Objects  int    `json:"objects"`
	// ObjectBytes is the size of the objects as stored, EncodingBytes that of the encodings held beside them.
	ObjectBytes   int64 `json:"objectBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// Revision is that of the kind's last change, OldestRevision the one after which a watch can still start.
	Revision       int64  `json:"revision"`
	OldestRevision int64  `json:"oldestRevision"`
	Watchers       int    `json:"watchers"`
	Ring           int    `json:"ring"` // recent changes retained for watchers
	RingLimit      int    `json:"ringLimit"`
	Changes        uint64 `json:"changes"` // since the start
	Expired        uint64 `json:"expiredWatchers"`
	Refused        uint64 `json:"refusedWatches"`
}

// ReconcilersReport is /debug/coracle/reconcilers.
type ReconcilersReport struct {
	Reconcilers []Reconciler `json:"reconcilers"`
}

// Reconciler is the declaration and state of one reconciler.
type Reconciler struct {
	Name     string   `json:"name"`
	Identity string   `json:"identity"`
	Watches  []string `json:"watches"`
	Reads    []string `json:"reads,omitempty"`
	Writes   []string `json:"writes"` // "Pod: create, delete"
	Synced   bool     `json:"synced"`
	Queued   int      `json:"queued"`
	Delayed  int      `json:"delayed"`
	Running  int      `json:"running"`
	Workers  int      `json:"workers"`
	// BackingOff counts the objects whose last reconcile failed; Failures are those that have failed longest.
	BackingOff int       `json:"backingOff"`
	Failures   []Failure `json:"failures,omitempty"`
	Crashes    uint64    `json:"crashes"`
	LastCrash  string    `json:"lastCrash,omitempty"`
}

// Failure is an object that could not be reconciled.
type Failure struct {
	Object   string    `json:"object"`
	Since    time.Time `json:"since"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
}

// FairnessReport is /debug/coracle/fairness.
type FairnessReport struct {
	Levels []FairnessLevel `json:"levels"`
}

// FairnessLevel is a priority level. Its Flows are the busiest.
type FairnessLevel struct {
	Name       string         `json:"name"`
	Exempt     bool           `json:"exempt,omitempty"`
	Seats      int            `json:"seats"`
	Guaranteed int            `json:"guaranteedSeats"`
	FlowLimit  int            `json:"seatsPerFlow"`
	Executing  int            `json:"executing"`
	Waiting    int            `json:"waiting"`
	Dispatched uint64         `json:"dispatched"`
	Rejected   uint64         `json:"rejected"`
	FlowCount  int            `json:"flowCount"`
	Flows      []FairnessFlow `json:"flows,omitempty"`
}

// FairnessFlow is the requests of one user, or of one namespace, in a flow schema.
type FairnessFlow struct {
	Schema    string `json:"schema"`
	Flow      string `json:"flow"`
	Executing int    `json:"executing"`
	Waiting   int    `json:"waiting"`
	Streams   int    `json:"streams"`
	BodyBytes int    `json:"bodyBytes"`
}

// StoreReport is /debug/coracle/store.
type StoreReport struct {
	Revision          int64  `json:"revision"`
	CompactedRevision int64  `json:"compactedRevision"`
	SizeBytes         int64  `json:"sizeBytes"`
	UsedBytes         int64  `json:"usedBytes"`
	QuotaBytes        int64  `json:"quotaBytes"`
	DiskFreeBytes     int64  `json:"diskFreeBytes"`
	DiskMinFreeBytes  int64  `json:"diskMinFreeBytes"`
	Members           int    `json:"members"`
	Warning           string `json:"warning,omitempty"`
}

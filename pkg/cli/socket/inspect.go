package socket

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
	// ObjectBytes is the size of the objects as stored, EncodingBytes the size of the encodings held beside them.
	ObjectBytes   int64 `json:"objectBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// Revision is the revision of the kind's last change, OldestRevision the one after which a watch can still start.
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
	// Refused means that admission or validation refuses what the object asks for.
	Refused bool `json:"refused,omitempty"`
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

// ScheduleReport is /debug/coracle/schedule: what the scheduler's filters and scores say about a pod now, on each node.
type ScheduleReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is the pod's node; empty while it waits.
	Node          string   `json:"node,omitempty"`
	NominatedNode string   `json:"nominatedNode,omitempty"`
	Gates         []string `json:"schedulingGates,omitempty"`
	SchedulerName string   `json:"schedulerName"`
	// Ours is false if another scheduler has to place the pod. It is then explained by the default profile.
	Ours bool `json:"ours"`
	// Group says what the pod's group waits for; empty if it has none.
	Group string `json:"group,omitempty"`
	// Summary is the message for a pod that fits nowhere.
	Summary string           `json:"summary,omitempty"`
	Filters []ScheduleFilter `json:"filters"`
	Scores  []ScheduleScore  `json:"scores"`
	// Ordered is set if scores are compared one after the other, instead of being added up.
	Ordered bool `json:"ordered,omitempty"`
	// Nodes are at most MostScheduleNodes nodes, best first. NodeCount and Fitting count all nodes.
	Nodes     []ScheduleNode `json:"nodes"`
	NodeCount int            `json:"nodeCount"`
	Fitting   int            `json:"fitting"`
}

// ScheduleFilter is a filter of the pod's profile. One that does not apply to the pod passes on every node.
type ScheduleFilter struct {
	Name    string `json:"name"`
	Applies bool   `json:"applies"`
}

// ScheduleScore is a score of the pod's profile that applies to the pod.
type ScheduleScore struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight,omitempty"`
}

// ScheduleNode is the verdict about one node.
type ScheduleNode struct {
	Name string `json:"name"`
	Fits bool   `json:"fits"`
	// Filters has "ok", or the reasons for which the node is refused, for each filter that applies.
	Filters map[string]string `json:"filters"`
	// Scores are weighted, by name; a node that does not fit has none.
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  int64            `json:"total,omitempty"`
}

// MostScheduleNodes is the maximum number of nodes in a ScheduleReport.
const MostScheduleNodes = 1000

// FilterPassed is the verdict of a filter that accepts a node.
const FilterPassed = "ok"

package socket

import "time"

// The following types are the reports of `coracle ctl inspect`, which the API server serves below /debug/coracle/.
// Sizes are in bytes. Every list is bounded.

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
	// ObjectBytes is the size of the objects as stored; EncodingBytes is the size of cached encodings.
	ObjectBytes   int64 `json:"objectBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// Revision is the revision of the last change; OldestRevision is the oldest from which a watch can start.
	Revision       int64  `json:"revision"`
	OldestRevision int64  `json:"oldestRevision"`
	Watchers       int    `json:"watchers"`
	Ring           int    `json:"ring"` // recent changes kept for watchers
	RingLimit      int    `json:"ringLimit"`
	Changes        uint64 `json:"changes"` // since the start of the process
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
	Writes   []string `json:"writes"` // such as "Pod: create, delete"
	Synced   bool     `json:"synced"`
	Queued   int      `json:"queued"`
	Delayed  int      `json:"delayed"`
	Running  int      `json:"running"`
	Workers  int      `json:"workers"`
	// BackingOff counts objects whose last reconcile failed. Failures has those that have failed the longest.
	BackingOff int       `json:"backingOff"`
	Failures   []Failure `json:"failures,omitempty"`
	Crashes    uint64    `json:"crashes"`
	LastCrash  string    `json:"lastCrash,omitempty"`
}

// Failure is an object that a reconciler could not reconcile.
type Failure struct {
	Object   string    `json:"object"`
	Since    time.Time `json:"since"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	// Refused means that admission or validation rejected the write.
	Refused bool `json:"refused,omitempty"`
}

// FairnessReport is /debug/coracle/fairness.
type FairnessReport struct {
	Levels []FairnessLevel `json:"levels"`
}

// FairnessLevel is a priority level. Flows are its busiest flows.
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

// FairnessFlow has the requests of one user or namespace in a flow schema.
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

// ScheduleReport is /debug/coracle/schedule: the current results of the scheduler's filters and scores for a pod on
// each node.
type ScheduleReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is the pod's node. It is empty while the pod is pending.
	Node          string   `json:"node,omitempty"`
	NodeMissing   bool     `json:"nodeMissing,omitempty"` // the cluster has no Node of this name
	Refused       string   `json:"refused,omitempty"`     // the node's message if it rejected the pod
	Waiting       bool     `json:"waiting,omitempty"`     // the pod has a node, but has not started there
	NominatedNode string   `json:"nominatedNode,omitempty"`
	Gates         []string `json:"schedulingGates,omitempty"`
	SchedulerName string   `json:"schedulerName"`
	// Ours is false if another scheduler is responsible for the pod. The report then uses the default profile.
	Ours bool `json:"ours"`
	// Group describes what the pod's group waits for. It is empty without a group.
	Group string `json:"group,omitempty"`
	// Summary is the message for a pod that fits on no node.
	Summary string           `json:"summary,omitempty"`
	Filters []ScheduleFilter `json:"filters"`
	Scores  []ScheduleScore  `json:"scores"`
	// Ordered is set if scores are compared one after the other instead of added up.
	Ordered bool `json:"ordered,omitempty"`
	// Nodes has at most MostScheduleNodes nodes, best first. NodeCount and Fitting count all nodes.
	Nodes     []ScheduleNode `json:"nodes"`
	NodeCount int            `json:"nodeCount"`
	Fitting   int            `json:"fitting"`
}

// ScheduleFilter is a filter of the pod's profile. A filter that does not apply to the pod accepts every node.
type ScheduleFilter struct {
	Name    string `json:"name"`
	Applies bool   `json:"applies"`
}

// ScheduleScore is a score of the pod's profile that applies to the pod.
type ScheduleScore struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight,omitempty"`
}

// ScheduleNode has the results for one node.
type ScheduleNode struct {
	Name string `json:"name"`
	Fits bool   `json:"fits"`
	// Filters has, for each filter that applies, "ok" or the reasons for rejecting the node.
	Filters map[string]string `json:"filters"`
	// Scores has the weighted scores by name. It is empty if the node does not fit.
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  int64            `json:"total,omitempty"`
}

// MostScheduleNodes is the maximum number of nodes in a ScheduleReport.
const MostScheduleNodes = 1000

// FilterPassed is the result of a filter that accepts a node.
const FilterPassed = "ok"

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DefaultKey is the default key of a Secret with a kubeconfig.
const DefaultKey = "kubeconfig"

// DefaultCluster sets the defaults. It is idempotent.
func DefaultCluster(c *Cluster) {
	if s := c.Spec.KubeconfigSecret; s != nil && s.Key == "" {
		s.Key = DefaultKey
	}
}

// Default sets the defaults, those of a new Resource included. It is idempotent.
func Default(r *Resource) {
	DefaultWritten(r)
	if r.Spec.Revision == nil {
		first := int64(1)
		r.Spec.Revision = &first
	}
}

// DefaultWritten sets the defaults of a Resource that is written, whose revision depends on the one it replaces (Prepare). It is idempotent. Once the
// object has a UID it has an id as well.
func DefaultWritten(r *Resource) {
	if r.Spec.Mode == "" {
		r.Spec.Mode = ModeCorrect
	}
	if r.Spec.DeletionPolicy == "" {
		r.Spec.DeletionPolicy = DeletionDelete
	}
	if r.UID != "" && r.Status.ID == 0 {
		r.Status.ID = IDOf(string(r.UID))
	}
}

// IDOf returns the id of a Resource with that UID: positive, and below 2^53, as JavaScript's numbers must be.
func IDOf(uid string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid))
	return int64(h.Sum64()>>11) | 1
}

// Prepare brings a Resource that is written into its form: a template with sorted keys, so that only changes of content are changes, and the
// revision of the old one, which is nil for a create, if none was sent.
func Prepare(r, old *Resource) {
	r.Spec.Template = canonical(r.Spec.Template)
	if old != nil {
		r.Status.ID, r.Status.History = old.Status.ID, old.Status.History
	}
	if r.Spec.Revision == nil {
		revision := int64(1)
		if old != nil {
			revision = revisionOf(old)
		}
		r.Spec.Revision = &revision
	}
}

// Changed is called if an update changes the spec: the revision rises unless it was set, and the former content goes into the history.
func Changed(r, old *Resource) {
	was := revisionOf(old)
	if r.Spec.Revision == nil || *r.Spec.Revision == was {
		next := was + 1
		r.Spec.Revision = &next
	}
	if bytes.Equal(r.Spec.Template.Raw, old.Spec.Template.Raw) && *r.Spec.Revision == was {
		return
	}
	history := append([]Revision{{Revision: was, Generation: old.Generation, Template: old.Spec.Template, Overrides: old.Spec.Overrides, ReplacedAt: metav1.NewTime(time.Now())}}, old.Status.History...)
	size := 0
	for i := range history {
		size += len(history[i].Template.Raw) + overridesSize(history[i].Overrides)
		if i == MaxHistory || size > maxHistoryBytes {
			history = history[:i]
			break
		}
	}
	r.Status.History = history
}

// PrepareStatus restores what a write to the status cannot change.
func PrepareStatus(r, old *Resource) {
	r.Status.ID, r.Status.History = old.Status.ID, old.Status.History
}

func revisionOf(r *Resource) int64 {
	if r.Spec.Revision == nil {
		return 1
	}
	return *r.Spec.Revision
}

// canonical returns JSON with sorted keys and without white space; what is not JSON is returned as it is, for the validation.
func canonical(e runtime.RawExtension) runtime.RawExtension {
	var v any
	d := json.NewDecoder(bytes.NewReader(e.Raw))
	d.UseNumber()
	if len(e.Raw) > MaxTemplate || d.Decode(&v) != nil {
		return e
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return e
	}
	return runtime.RawExtension{Raw: bytes.TrimSpace(out.Bytes())}
}

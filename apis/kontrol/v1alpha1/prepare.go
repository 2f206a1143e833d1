package v1alpha1

import (
	"bytes"
	"cmp"
	"encoding/json"
	"hash/fnv"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DefaultKey is the default key of the kubeconfig in a Secret.
const DefaultKey = "kubeconfig"

// DefaultCluster sets the defaults. It is idempotent.
func DefaultCluster(c *Cluster) {
	if s := c.Spec.KubeconfigSecret; s != nil && s.Key == "" {
		s.Key = DefaultKey
	}
}

// Default sets the defaults of a new Resource, including its first revision. It is idempotent.
func Default(r *Resource) {
	DefaultWritten(r)
	if r.Spec.Revision == nil {
		r.Spec.Revision = new(int64(1))
	}
}

// DefaultWritten sets the defaults of a Resource on every write. It sets no revision, which depends on the previous
// object (Prepare), and sets the id once the object has a UID. It is idempotent.
func DefaultWritten(r *Resource) {
	r.Spec.Mode = cmp.Or(r.Spec.Mode, ModeCorrect)
	r.Spec.DeletionPolicy = cmp.Or(r.Spec.DeletionPolicy, DeletionDelete)
	if r.UID != "" && r.Status.ID == 0 {
		r.Status.ID = IDOf(string(r.UID))
	}
}

// IDOf returns the id of the Resource with the UID: positive and below 2^53, the range of JavaScript's integers.
func IDOf(uid string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid))
	return int64(h.Sum64()>>11) | 1
}

// Prepare normalizes a Resource that is being written. It sorts the template's keys, so that only changes of
// content count as changes, and keeps the revision of old unless a revision was sent. old is nil for a create.
func Prepare(r, old *Resource) {
	r.Spec.Template = canonical(r.Spec.Template)
	if old != nil {
		keep(r, old)
	}
	if r.Spec.Revision == nil {
		revision := int64(1)
		if old != nil {
			revision = RevisionOf(old)
		}
		r.Spec.Revision = &revision
	}
}

// Accept does on write for a custom resource, on another API server, what Coracle's API server does for a Resource.
// It returns a copy with defaults, id and finalizer, with a revision that is incremented unless it was set, and
// with the accepted content and the history in its status. If the Resource is invalid, it returns only errors. If
// the spec or finalizers differ from r's, the caller must write them and call Accept with the result, before it
// writes the status.
func Accept(r *Resource) (*Resource, field.ErrorList) {
	next := r.DeepCopy()
	DefaultWritten(next)
	if !slices.Contains(next.Finalizers, FinalizerTargets) {
		next.Finalizers = append(next.Finalizers, FinalizerTargets)
	}
	was := r.Status.Accepted
	if was != nil && was.Generation == r.Generation && r.Spec.Revision != nil {
		return next, nil
	}
	next.Spec.Template = canonical(next.Spec.Template)
	if was == nil {
		if errs := Validate(next); len(errs) > 0 {
			return nil, errs
		}
		Default(next)
	} else {
		old := &Resource{
			Spec: ResourceSpec{Revision: &was.Revision, Template: was.Template, Overrides: was.Overrides}, Status: r.Status,
		}
		old.Generation = was.Generation
		if errs := ValidateUpdate(next, old); len(errs) > 0 {
			return nil, errs
		}
		Changed(next, old)
		// the accepted content takes up part of the limit
		next.Status.History = bounded(next.Status.History, maxHistoryBytes/2)
	}
	next.Status.Accepted = &Accepted{
		Revision:   *next.Spec.Revision,
		Generation: r.Generation,
		Template:   next.Spec.Template,
		Overrides:  next.Spec.Overrides,
	}
	next.Spec.Template = r.Spec.Template
	return next, nil
}

// IsAccepted reports whether a Resource may be applied as it is, because its API server or the operator has
// accepted it.
func IsAccepted(r *Resource) bool {
	if a := r.Status.Accepted; a != nil {
		return a.Generation == r.Generation && r.Spec.Revision != nil
	}
	return SelfAccepted(r)
}

// SelfAccepted reports whether the API server has accepted a Resource, so that Accept is not needed.
func SelfAccepted(r *Resource) bool {
	return r.Status.Accepted == nil && r.Status.ID != 0 && r.Spec.Revision != nil
}

// Changed must be called if an update changes the spec. It increments the revision unless it was set, and adds the
// previous content to the history.
func Changed(r, old *Resource) {
	was := RevisionOf(old)
	if r.Spec.Revision == nil || *r.Spec.Revision == was {
		r.Spec.Revision = new(was + 1)
	}
	if bytes.Equal(r.Spec.Template.Raw, old.Spec.Template.Raw) && *r.Spec.Revision == was {
		return
	}
	history := append([]Revision{
		{
			Revision:   was,
			Generation: old.Generation,
			Template:   old.Spec.Template,
			Overrides:  old.Spec.Overrides,
			ReplacedAt: metav1.NewTime(time.Now()),
		},
	}, old.Status.History...)
	r.Status.History = bounded(history, maxHistoryBytes)
}

// bounded returns the newest revisions that fit into the limits.
func bounded(history []Revision, most int) []Revision {
	size := 0
	for i := range history {
		size += len(history[i].Template.Raw) + overridesSize(history[i].Overrides)
		if i == MaxHistory || size > most {
			return history[:i]
		}
	}
	return history
}

// PrepareStatus restores the fields that a write of the status cannot change.
func PrepareStatus(r, old *Resource) { keep(r, old) }

// keep copies the status fields that only the API server writes.
func keep(r, old *Resource) {
	r.Status.ID, r.Status.History, r.Status.Accepted = old.Status.ID, old.Status.History, nil
}

// RevisionOf returns the revision of a Resource: 1 until it is set.
func RevisionOf(r *Resource) int64 {
	if r.Spec.Revision == nil {
		return 1
	}
	return *r.Spec.Revision
}

// canonical returns JSON with sorted keys and without white space. It returns invalid JSON unchanged; validation
// rejects it.
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

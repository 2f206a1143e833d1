package v1alpha1

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DefaultKey is the default key of a Secret with a kubeconfig.
const DefaultKey = "kubeconfig"

// DefaultCluster sets the defaults. It is idempotent.
func DefaultCluster(c *Cluster) {
	if s := c.Spec.KubeconfigSecret; s != nil && s.Key == "" {
		s.Key = DefaultKey
	}
}

// Default sets the defaults, including the ones that only a new Resource has. It is idempotent.
func Default(r *Resource) {
	DefaultWritten(r)
	if r.Spec.Revision == nil {
		first := int64(1)
		r.Spec.Revision = &first
	}
}

// DefaultWritten sets the defaults of a Resource that is written, whose revision depends on the one it replaces
// (Prepare). It is idempotent. Once the object has a UID it has an id as well.
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

// Prepare brings a Resource that is written into its form: a template with sorted keys, so that only changes of content
// are changes, and the revision of the old one, which is nil for a create, if none was sent.
func Prepare(r, old *Resource) {
	r.Spec.Template = canonical(r.Spec.Template)
	if old != nil {
		keep(r, old)
	}
	if r.Spec.Revision == nil {
		revision := int64(1)
		if old != nil {
			revision = revisionOf(old)
		}
		r.Spec.Revision = &revision
	}
}

// Accept does for a Resource what the API server of Coracle does when one is written, where another serves Kontrol's
// kinds by definitions: it returns the Resource with defaults, id and finalizer, with a revision that has risen unless
// it was set, and in its status the accepted content, and the former one in the history. The errors say why it is not
// valid; then nothing is returned. Where its spec or finalizers differ from what was given they are to be written, and
// what comes of that to be accepted again, before the status is written.
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
		// the accepted content takes the place of the rest
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

// IsAccepted reports whether a Resource may be applied as it is: its API server has accepted it, or the operator.
func IsAccepted(r *Resource) bool {
	if a := r.Status.Accepted; a != nil {
		return a.Generation == r.Generation && r.Spec.Revision != nil
	}
	return SelfAccepted(r)
}

// SelfAccepted reports whether the API server has accepted a Resource, so that Accept has nothing to do.
func SelfAccepted(r *Resource) bool {
	return r.Status.Accepted == nil && r.Status.ID != 0 && r.Spec.Revision != nil
}

// Changed is called if an update changes the spec: the revision rises unless it was set, and the former content goes
// into the history.
func Changed(r, old *Resource) {
	was := revisionOf(old)
	if r.Spec.Revision == nil || *r.Spec.Revision == was {
		next := was + 1
		r.Spec.Revision = &next
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

// bounded returns the newest revisions, as many as may be kept.
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

// PrepareStatus restores what a write to the status cannot change.
func PrepareStatus(r, old *Resource) { keep(r, old) }

// keep restores the part of the status that the API server writes.
func keep(r, old *Resource) {
	r.Status.ID, r.Status.History, r.Status.Accepted = old.Status.ID, old.Status.History, nil
}

func revisionOf(r *Resource) int64 {
	if r.Spec.Revision == nil {
		return 1
	}
	return *r.Spec.Revision
}

// canonical returns JSON with sorted keys and without white space; what is not JSON is returned as it is, for the
// validation.
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

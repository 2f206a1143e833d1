// Package fieldset computes the managed fields (KEP-555) of built-in objects, with the same result as upstream's field
// manager at a fraction of its cost.
//
// Upstream converts both objects to generic values, compares them by a schema whose parsing takes longer than the
// start of this server, and represents field sets as trees. This package builds one plan per Go type (plan.go),
// compares two objects field by field with it, and writes the differences directly as FieldsV1 text (compare.go,
// text.go). It also merges and subtracts sets as text (set.go). topology.txt, which a test derives from upstream's
// schema, says which lists are maps or sets, and what is atomic.
//
// Its invariant: either the result is the one that upstream's field manager would compute, or ok is false, and the
// caller must use upstream's field manager. Everything is safe for concurrent use.
package fieldset

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxUpdaters is the number of Update entries above which upstream merges the oldest.
const maxUpdaters = 10

// Writer identifies a writer, with the version and subresource it writes through.
type Writer struct {
	Manager, APIVersion, Subresource string
	// Time is the time of the write in UTC, in whole seconds.
	Time time.Time
}

func (w Writer) entry(raw []byte) metav1.ManagedFieldsEntry {
	t := metav1.NewTime(w.Time)
	return metav1.ManagedFieldsEntry{
		Manager: w.Manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: w.APIVersion,
		Subresource: w.Subresource,
		Time:        &t, FieldsType: "FieldsV1", FieldsV1: fieldsOf(raw),
	}
}

func (w Writer) is(e *metav1.ManagedFieldsEntry) bool {
	return e.Operation == metav1.ManagedFieldsOperationUpdate && e.Manager == w.Manager && e.APIVersion == w.APIVersion &&
		e.Subresource == w.Subresource
}

// Created returns the managed fields of an object that w creates. It does not change obj.
func (p *Plan) Created(obj runtime.Object, w Writer) (entries []metav1.ManagedFieldsEntry, ok bool) {
	changed, _, ok := p.compare(p.empty, obj)
	if !ok || changed == nil {
		return nil, ok
	}
	return []metav1.ManagedFieldsEntry{w.entry(changed)}, true
}

// Updated returns the managed fields after w changes an object from old to obj. entries are the managed fields
// before the change; if there are none, the object is not tracked, and remains so. Updated does not modify its
// arguments. The result may share memory with entries.
func (p *Plan) Updated(old, obj runtime.Object, entries []metav1.ManagedFieldsEntry,
	w Writer) (after []metav1.ManagedFieldsEntry, ok bool) {
	if len(entries) == 0 {
		return nil, true
	}
	if !known(entries, w.APIVersion) || p.record != nil && !p.record.plain(entries) {
		return nil, false
	}
	changed, removed, ok := p.compare(old, obj)
	if !ok {
		return nil, false
	}
	after = make([]metav1.ManagedFieldsEntry, 0, len(entries)+1)
	updaters, mine := 0, false
	for _, e := range entries {
		raw := e.FieldsV1.GetRawBytes()
		left, ok := subtract(raw, changed, removed)
		if !ok {
			return nil, false
		}
		self := w.is(&e) && changed != nil
		if self {
			mine = true
			if left, ok = union(left, changed); !ok {
				return nil, false
			}
		}
		if left == nil {
			continue
		}
		if self {
			e = w.entry(left)
		} else if len(left) != len(raw) {
			e.FieldsV1 = fieldsOf(left)
		}
		after = append(after, e)
		if e.Operation == metav1.ManagedFieldsOperationUpdate {
			updaters++
		}
	}
	if !mine && changed != nil {
		after = append(after, w.entry(changed))
		updaters++
	}
	if updaters > maxUpdaters {
		return nil, false // upstream merges them
	}
	if len(after) == 0 {
		return nil, true
	}
	slices.SortFunc(after, order)
	return after, true
}

// known reports whether all entries have the given version, different managers, and a form that upstream can read.
func known(entries []metav1.ManagedFieldsEntry, version string) bool {
	for i := range entries {
		e := &entries[i]
		if e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate ||
			e.APIVersion != version || e.FieldsType != "FieldsV1" || e.FieldsV1 == nil {
			return false
		}
		for j := range i {
			if f := &entries[j]; f.Manager == e.Manager && f.Operation == e.Operation && f.Subresource == e.Subresource {
				return false
			}
		}
	}
	return true
}

func order(a, b metav1.ManagedFieldsEntry) int {
	return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(unix(a.Time), unix(b.Time)),
		cmp.Compare(a.Manager, b.Manager),
		cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
}

func unix(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}

// fieldsOf takes ownership of raw; SetRawBytes would copy it.
func fieldsOf(raw []byte) *metav1.FieldsV1 {
	return &metav1.FieldsV1{Raw: raw} //nolint:staticcheck
}

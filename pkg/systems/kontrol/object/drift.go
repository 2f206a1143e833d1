package object

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Change is a field that another client changed.
type Change struct {
	Path fieldpath.Path
	kontrol.Drift
}

// Drifted returns the fields of a live object that other clients changed since it was applied: first the applied
// fields, then added ones. applied is Record of the cluster's answer to the apply, and fields are the applied fields.
func Drifted(live *unstructured.Unstructured, applied map[string]any, fields *fieldpath.Set,
	ignored Ignored) (changed, added []Change) {
	managed := live.GetManagedFields()
	now := Record(live.Object)
	owned, _ := Owned(managed)
	owners := ownersOf(managed)
	secret := IsSecret(live.Object)
	var gone []fieldpath.Path
	fields.Difference(owned).Iterate(func(p fieldpath.Path) {
		if slices.ContainsFunc(gone, func(g fieldpath.Path) bool { return within(p, g) }) || ignored.Field(p) {
			return
		}
		was, had := Lookup(applied, p)
		is, has := Lookup(now, p)
		if !had || has && (container(was) && container(is) && !fields.Leaves().Has(p) || reflect.DeepEqual(was, is)) {
			return
		}
		c := Change{Path: slices.Clone(p), Drift: kontrol.Drift{Path: p.String(), Type: kontrol.DriftChanged}}
		if !has {
			c.Type = kontrol.DriftRemoved
			gone = append(gone, c.Path)
		}
		if o := ownerOf(owners, p); o != nil {
			if ignored.Manager(o.Manager) {
				return
			}
			c.Manager, c.Operation, c.Time = o.Manager, string(o.Operation), o.Time
		}
		if !secret {
			c.Desired, c.Actual = text(was, had), text(is, has)
		}
		changed = append(changed, c)
	})
	return changed, additions(owners, now, fields.Union(owned), ignored, secret)
}

// Untouched is a cheap check that Drifted would find nothing: Kontrol still owns the applied fields, given as JSON, and
// no other manager owns fields that count as drift. It may return false without drift.
func Untouched(managed []metav1.ManagedFieldsEntry, fields []byte, ignored Ignored) bool {
	if len(fields) == 0 || !bytes.Equal(OwnedText(managed), fields) {
		return false
	}
	for i := range managed {
		if m := &managed[i]; m.FieldsV1 != nil && !ours(m) && adds(m, ignored) {
			return false
		}
	}
	return true
}

// adds reports whether fields that only this manager owns are additions of another client.
func adds(m *metav1.ManagedFieldsEntry, ignored Ignored) bool {
	return m.Subresource == "" && m.Manager != kontrol.FieldManager &&
		!strings.HasPrefix(m.Manager, kontrol.FieldManager+"-initial") &&
		!ignored.Manager(m.Manager) && !system(m.Manager)
}

// additions returns the fields that other clients added. ours are Kontrol's.
func additions(owners []owner, now map[string]any, ours *fieldpath.Set, ignored Ignored, secret bool) (added []Change) {
	inside := map[string]bool{} // ours and the fields that contain them
	ours.Iterate(func(p fieldpath.Path) {
		for i := range p {
			inside[p[:i+1].String()] = true
		}
	})
	var tops []fieldpath.Path
	for _, o := range owners {
		if !adds(&o.ManagedFieldsEntry, ignored) {
			continue
		}
		o.set.Difference(ours).Iterate(func(p fieldpath.Path) {
			if inside[p.String()] || !peoples(p) || ignored.Field(p) ||
				slices.ContainsFunc(tops, func(t fieldpath.Path) bool { return within(p, t) }) {
				return
			}
			is, has := Lookup(now, p)
			if !has || container(is) && len(p) == 1 && !o.set.Leaves().Has(p) {
				return
			}
			c := Change{
				Path: slices.Clone(p), Drift: kontrol.Drift{Path: p.String(), Type: kontrol.DriftAdded, Manager: o.Manager,
					Operation: string(o.Operation), Time: o.Time},
			}
			if !secret {
				c.Actual = text(is, true)
			}
			tops = append(tops, c.Path)
			added = append(added, c)
		})
	}
	return added
}

type owner struct {
	metav1.ManagedFieldsEntry
	set *fieldpath.Set
}

func ownersOf(managed []metav1.ManagedFieldsEntry) (list []owner) {
	for _, m := range managed {
		if m.FieldsV1 != nil {
			list = append(list, owner{m, Fields(m.FieldsV1.GetRawBytes())})
		}
	}
	return list
}

// ownerOf returns the latest manager other than Kontrol that owns the field or, if none does, the closest field that
// contains it.
func ownerOf(owners []owner, p fieldpath.Path) *owner {
	for n := len(p); n > 0; n-- {
		var last *owner
		for i := range owners {
			o := &owners[i]
			if o.Manager == kontrol.FieldManager && o.Operation == metav1.ManagedFieldsOperationApply || !o.set.Has(p[:n]) {
				continue
			}
			if last == nil || o.Time != nil && (last.Time == nil || last.Time.Before(o.Time)) {
				last = o
			}
		}
		if last != nil {
			return last
		}
	}
	return nil
}

// system reports whether a field manager is a component of Kubernetes, which adds fields to other clients' objects by
// design.
func system(manager string) bool {
	return slices.Contains([]string{
		"kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kube-apiserver", "cloud-controller-manager",
		"coracle",
	}, manager) ||
		strings.HasSuffix(manager, "-controller") && !strings.Contains(manager, "kontrol")
}

// peoples reports whether users write a field: any except status, the object's identity, and metadata other than labels
// and annotations.
func peoples(p fieldpath.Path) bool {
	first := p[0].FieldName
	switch {
	case first == nil || *first == "status" || *first == "apiVersion" || *first == "kind":
		return false
	case *first == "metadata":
		return len(p) > 2 && p[1].FieldName != nil && (*p[1].FieldName == "labels" || *p[1].FieldName == "annotations")
	}
	return true
}

func within(p, g fieldpath.Path) bool {
	return len(p) >= len(g) && p[:len(g)].Equals(g)
}

func container(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// text returns a value as JSON of at most kontrol.MaxValue bytes.
func text(v any, has bool) string {
	if !has {
		return ""
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return bounded.Text(string(raw), kontrol.MaxValue)
}

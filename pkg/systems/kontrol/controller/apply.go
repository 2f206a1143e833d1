package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
)

// initialManager is the name prefix of the field managers that own the first values of ignored fields. The values
// remain when Kontrol's own manager stops applying these fields.
const initialManager = "kontrol-initial"

// Answer is a cluster's response to an apply: the object, the fields that Kontrol owns, and the object's version.
type Answer struct {
	Object, Fields  runtime.RawExtension
	ResourceVersion string
}

// claimedError means that the object belongs to another Resource, possibly of another Kontrol installation.
type claimedError struct{ id int64 }

func (e *claimedError) Error() string {
	return fmt.Sprintf("the object belongs to the Resource with the id %d, of this Kontrol or another: delete one of "+
		"the Resources, or remove the annotation %s from the object",
		e.id, kontrol.AnnotationID)
}

// Apply applies a Resource's object by server-side apply. It takes fields over from another manager only if
// Kontrol applied them before, and step.Correct is set or the mode is not Report.
func Apply(ctx context.Context, c client.WithWatch, o Observed, step Step) (Answer, error) {
	r := o.Resource
	t := kontrol.TargetOf(r)
	gvk := schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)
	mapping, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return Answer{}, err
	}
	if err := kontrol.CheckScope(t, mapping.Scope.Name() == meta.RESTScopeNameNamespace); err != nil {
		return Answer{}, apierrors.NewBadRequest(err.Error())
	}
	full, err := desired(r, o.Cluster)
	if err != nil {
		return Answer{}, err
	}
	ignored, never := object.NewIgnored(r.Spec.Ignore), o.Applied == nil || o.Applied.Generation == 0
	var live, made *unstructured.Unstructured
	if never && (o.Current == nil || !o.Current.Present) {
		if made, err = create(ctx, c, t, full, o); err != nil {
			return Answer{}, err
		}
	}
	if made == nil {
		if never || step.Prune || !ignored.None() {
			if live, err = read(ctx, c, t); err != nil {
				return Answer{}, err
			}
		}
		if id := claim(live, o.Current); id != 0 && id != r.Status.ID {
			return Answer{}, &claimedError{id}
		}
		if live != nil && live.GetDeletionTimestamp() != nil {
			return Answer{}, apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: mapping.Resource.Resource},
				t.Name, errors.New("the object is being deleted"))
		}
		if live == nil || ignored.None() {
			if made, err = patch(ctx, c, t, full, o, kontrol.FieldManager); err != nil {
				return Answer{}, err
			}
		}
	}
	if made != nil && ignored.None() {
		return finish(ctx, c, o, step, made)
	}
	if made != nil {
		// Managers that never apply again take the first values of the ignored fields.
		for i, part := range ignored.Parts(full) {
			if _, err := patch(ctx, c, t, part, o, fmt.Sprintf("%s-%d", initialManager, i)); err != nil {
				return Answer{}, err
			}
		}
		live = made
	}
	if made, err = patch(ctx, c, t, ignored.Cut(full, live.GetManagedFields()), o, kontrol.FieldManager); err != nil {
		return Answer{}, err
	}
	return finish(ctx, c, o, step, made)
}

// noVersion is a resourceVersion that no object has, since an API server's first write gets the next one. An apply
// with it creates a missing object, and is a conflict if the object exists (registry.Store.Update of
// k8s.io/apiserver).
const noVersion = "1"

// create applies an object that should not exist yet. It returns nil if the object exists.
func create(ctx context.Context, c client.WithWatch, t kontrol.Target, full map[string]any,
	o Observed) (*unstructured.Unstructured, error) {
	body := maps.Clone(full)
	meta, _ := full["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	meta["resourceVersion"] = noVersion
	body["metadata"] = meta
	out, err := patch(ctx, c, t, body, o, kontrol.FieldManager)
	if apierrors.IsConflict(err) {
		return nil, nil //nolint:nilnil // it exists
	}
	return out, err
}

// finish removes the fields that other managers added, if step.Prune is set, and returns the answer.
func finish(ctx context.Context, c client.WithWatch, o Observed, step Step,
	out *unstructured.Unstructured) (Answer, error) {
	var err error
	fields := object.OwnedText(out.GetManagedFields())
	if step.Prune {
		owned := object.Fields(fields)
		if out, err = prune(ctx, c, o, out, owned); err != nil {
			return Answer{}, err
		}
	}
	if len(fields) > kontrol.MaxObject {
		fields = nil
	}
	return Answer{
		Object: runtime.RawExtension{Raw: object.JSON(object.Record(out.Object))}, Fields: runtime.RawExtension{Raw: fields},
		ResourceVersion: out.GetResourceVersion(),
	}, nil
}

func prune(ctx context.Context, c client.WithWatch, o Observed, out *unstructured.Unstructured,
	owned *fieldpath.Set) (*unstructured.Unstructured, error) {
	_, added := object.Drifted(out, object.Record(out.Object), owned, object.NewIgnored(o.Resource.Spec.Ignore))
	if len(added) == 0 {
		return out, nil
	}
	content := out.Object
	for i := len(added) - 1; i >= 0; i-- { // from the end: indexes of lists remain valid
		content = object.Remove(content, added[i].Path)
	}
	next := &unstructured.Unstructured{Object: content}
	next = next.DeepCopy()
	next.SetManagedFields(nil) // the server retains them
	if err := c.Update(ctx, next, client.FieldOwner(kontrol.FieldManager)); err != nil {
		return nil, err
	}
	return next, nil
}

// read returns an object of a cluster; nil if it does not exist.
func read(ctx context.Context, c client.WithWatch, t kontrol.Target) (*unstructured.Unstructured, error) {
	o := empty(t)
	if err := c.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Name}, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

func empty(t kontrol.Target) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(t.APIVersion)
	o.SetKind(t.Kind)
	o.SetNamespace(t.Namespace)
	o.SetName(t.Name)
	return o
}

// claim returns the ID of the Resource that the object belongs to; 0 for none.
func claim(live *unstructured.Unstructured, current *kontrol.Current) int64 {
	if live == nil && current != nil && current.Present {
		live = &unstructured.Unstructured{Object: object.Parse(current.Object.Raw)}
	}
	if live == nil || live.Object == nil {
		return 0
	}
	id, _, _ := object.IDs(live)
	return id
}

// desired returns the object to apply: the template with the cluster's overrides and Kontrol's annotations and
// label.
func desired(r *kontrol.Resource, c *kontrol.Cluster) (map[string]any, error) {
	raw, err := placement.Render(r, c)
	if err != nil {
		return nil, err
	}
	o := object.Parse(raw)
	meta, _ := o["metadata"].(map[string]any)
	id := strconv.FormatInt(r.Status.ID, 10)
	with := func(key string, values map[string]any) {
		texts := map[string]any{}
		if old, ok := meta[key].(map[string]any); ok {
			maps.Copy(texts, old)
		}
		maps.Copy(texts, values)
		meta[key] = texts
	}
	with("labels", map[string]any{kontrol.LabelID: id})
	with("annotations", map[string]any{
		kontrol.AnnotationID: id, kontrol.AnnotationGeneration: strconv.FormatInt(r.Generation, 10),
		kontrol.AnnotationRevision: strconv.FormatInt(*r.Spec.Revision, 10),
	})
	return o, nil
}

// patch applies an object. A conflict is drift if it is about fields that Kontrol applied before, and the other
// manager changed them by update, not by apply. patch reverts such drift unless the mode is Report.
func patch(ctx context.Context, c client.WithWatch, t kontrol.Target, body map[string]any, o Observed,
	manager string) (*unstructured.Unstructured, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	out := empty(t)
	err = c.Patch(ctx, out, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager))
	if list := conflicts(err); len(list) > 0 && o.Resource.Spec.Mode != kontrol.ModeReport && updated(list) &&
		(ours(list, o.Applied) || unrecorded(ctx, c, t, o)) {
		out = empty(t)
		err = c.Patch(ctx, out, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager), client.ForceOwnership)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func conflicts(err error) (list []metav1.StatusCause) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, c := range status.Status().Details.Causes {
		if c.Type == metav1.CauseTypeFieldManagerConflict {
			list = append(list, c)
		}
	}
	return list
}

// updated reports whether all conflicts are with managers that wrote by update, not by apply. The API server's
// message names an API version (" using v1") only for those.
func updated(list []metav1.StatusCause) bool {
	return !slices.ContainsFunc(list, func(c metav1.StatusCause) bool { return !strings.Contains(c.Message, " using ") })
}

// ours reports whether all conflicts are about fields that Kontrol applied before.
func ours(list []metav1.StatusCause, a *kontrol.Applied) bool {
	if a == nil || a.Generation == 0 {
		return false
	}
	before := map[string]bool{}
	object.Fields(a.Fields.Raw).Iterate(func(p fieldpath.Path) { before[p.String()] = true })
	return !slices.ContainsFunc(list, func(c metav1.StatusCause) bool { return !before[c.Field] })
}

var generationField = fieldpath.MakePathOrDie("metadata", "annotations", kontrol.AnnotationGeneration)

// unrecorded reports whether the object has a later generation than the record: the answer was lost, or the
// process ended before recording it. The fields of that apply are unknown, so patch takes all fields of the
// Resource.
func unrecorded(ctx context.Context, c client.WithWatch, t kontrol.Target, o Observed) bool {
	live, err := read(ctx, c, t)
	if err != nil || live == nil {
		return false // the conflict is reported and retried
	}
	recorded := int64(0)
	if o.Applied != nil {
		recorded = o.Applied.Generation
	}
	id, generation, _ := object.IDs(live)
	owned, _ := object.Owned(live.GetManagedFields())
	return id == o.Resource.Status.ID && generation > recorded && generation <= o.Resource.Generation &&
		owned.Has(generationField)
}

func explain(err error, mode kontrol.Mode) kontrol.Applied {
	var claimed *claimedError
	switch list := conflicts(err); {
	case errors.As(err, &claimed):
		return kontrol.Applied{Status: kontrol.ApplyConflict, Reason: kontrol.ReasonSameObject, Error: err.Error()}
	case len(list) > 0:
		text := fmt.Sprintf("%s: %s", list[0].Field, list[0].Message)
		if len(list) > 1 {
			text += fmt.Sprintf(", and %d more", len(list)-1)
		}
		text += ": remove the field from the Resource, add it to spec.ignore, or take it from the other manager"
		if mode == kontrol.ModeReport && updated(list) {
			text += " (spec.mode Correct does, if Kontrol applied the field before)"
		}
		return kontrol.Applied{Status: kontrol.ApplyConflict, Reason: kontrol.ReasonFieldConflict, Error: text}
	case meta.IsNoMatchError(err):
		return kontrol.Applied{
			Status: kontrol.ApplyWaiting,
			Reason: kontrol.ReasonNoKind,
			Error:  "the cluster does not serve the kind yet; the object is applied once it does: " + err.Error(),
		}
	}
	reason := cmp.Or(string(apierrors.ReasonForError(err)), "Error")
	return kontrol.Applied{Status: kontrol.ApplyFailed, Reason: reason, Error: err.Error()}
}

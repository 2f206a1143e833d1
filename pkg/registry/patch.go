package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/payload"
)

// Upstream's bounds on a patch: operations of a JSON patch, bytes of any.
const (
	maxOperations = 10000
	maxPatchBytes = 3 << 20
)

// boundCopies sets the library's bound on what the copy operations of one JSON patch add, as upstream does. It is the library's only
// way, and holds for the process.
func boundCopies() {
	if have := atomic.LoadInt64(&jsonpatch.AccumulatedCopySizeLimit); have <= 0 || have > maxPatchBytes {
		atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, maxPatchBytes)
	}
}

// Patch applies a JSON, merge, strategic merge or apply patch, and repeats it on conflict unless the patch names a resourceVersion.
func (r *Registry) Patch(ctx context.Context, t Target, pt types.PatchType, data []byte, o metav1.PatchOptions) (Result, error) {
	if errs := validation.ValidatePatchOptions(&o, pt); len(errs) > 0 {
		return Result{}, apierrors.NewInvalid(metaKind("PatchOptions"), "", errs)
	}
	if len(data) > maxPatchBytes {
		return Result{}, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxPatchBytes))
	}
	c, err := r.begin(ctx, t, "patch", o.DryRun)
	if err != nil {
		return Result{}, err
	}
	update := metav1.UpdateOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
	if pt == types.ApplyPatchType {
		return c.apply(data, &o, update)
	}
	if pt == types.StrategicMergePatchType && !t.Resource.Proto {
		return Result{}, unsupportedPatch(pt) // as for custom resources: such kinds do not say how to merge their lists
	}
	p := &patch{ctx: c.ctx, kind: pt, data: data, strict: o.FieldValidation}
	if err := p.parse(); err != nil {
		return Result{}, err
	}
	if c.Subresource == "scale" {
		return c.rescale(update, true, c.tracking(o.FieldManager, func(old *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
			out := &autoscalingv1.Scale{}
			if err := p.apply(old, nil, out); err != nil {
				return nil, err
			}
			if err := c.checkName(out); err != nil {
				return nil, err
			}
			return out, c.sameRevision(out, old)
		}))
	}
	w, err := c.write(update)
	if err != nil {
		return Result{}, err
	}
	// A patched object carries the revision it was made from, unless the patch says another: that is the caller's
	// precondition, and the only conflict that is not tried again.
	w.mayMake = false
	w.change = func(e *cache.Entry) (client.Object, error) {
		old := e
		if c.row != c.Resource {
			if old, err = As(c.Resource, e); err != nil {
				return nil, err
			}
		}
		out := c.Resource.New()
		if err := p.apply(old.Object, old.JSON, out); err != nil {
			return nil, err
		}
		return out, c.checkName(out)
	}
	return w.run()
}

// sameRevision is the precondition of a patch that names a resourceVersion.
func (c *call) sameRevision(now, old client.Object) error {
	if rv := now.GetResourceVersion(); rv != "" && rv != old.GetResourceVersion() {
		return apierrors.NewConflict(c.gr(), c.Name, errModified)
	}
	return nil
}

// patch is one patch, parsed once and applied as often as the race for the object needs.
type patch struct {
	ctx    context.Context
	kind   types.PatchType
	data   []byte
	strict string // FieldValidation: Strict, Warn, Ignore; empty is Warn, as upstream's default

	ops      jsonpatch.Patch
	merge    map[string]any
	shape    payload.Shape
	copies   int64   // operations of a JSON patch that copy
	indexed  int64   // and those that may move the items of a list
	problems []error // with the patch itself: duplicate fields
	warned   bool
}

func (p *patch) checks() bool { return p.strict != metav1.FieldValidationIgnore }

func (p *patch) parse() (err error) {
	bad := func(err error) error { return apierrors.NewBadRequest(brief("error decoding patch: " + err.Error())) }
	if p.shape, err = payload.Measure(p.data, nil); err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	switch p.kind {
	case types.JSONPatchType:
		return p.parseOperations(bad)
	case types.MergePatchType, types.StrategicMergePatchType:
		p.merge = map[string]any{}
		problems, err := kjson.UnmarshalStrict(p.data, &p.merge)
		if err != nil {
			return bad(err)
		}
		p.problems = problems
	default:
		return unsupportedPatch(p.kind)
	}
	return nil
}

func (p *patch) parseOperations(bad func(error) error) error {
	var ops []struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		From  string `json:"from"`
		Value any    `json:"value"`
	}
	problems, err := kjson.UnmarshalStrict(p.data, &ops)
	if err != nil {
		return bad(err)
	}
	for _, e := range problems {
		p.problems = append(p.problems, fmt.Errorf("json patch %w", e))
	}
	if len(ops) > maxOperations {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(ops)))
	}
	for _, op := range ops {
		if strings.Count(op.Path, "/") > payload.MaxDepth || strings.Count(op.From, "/") > payload.MaxDepth {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a path of a JSON patch may have at most %d parts", payload.MaxDepth))
		}
		if op.Op == "copy" {
			p.copies++
		}
		if indexes(op.Path) || indexes(op.From) {
			p.indexed++
		}
	}
	if p.ops, err = jsonpatch.DecodePatch(p.data); err != nil {
		return apierrors.NewBadRequest(brief(err.Error()))
	}
	return nil
}

// operate applies the operations of a JSON patch. The library panics at some that make no sense, such as to replace an object with nothing.
func (p *patch) operate(before []byte) (after []byte, err error) {
	defer func() {
		if wrong := recover(); wrong != nil {
			err = fmt.Errorf("the operations cannot be applied to the object: %v", wrong)
		}
	}()
	return p.ops.Apply(before)
}

// indexes says that the last part of a path is the index of a list's item.
func indexes(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '/')+1:])
	return err == nil
}

// unsupportedPatch is 415, with what there is.
func unsupportedPatch(kind types.PatchType) error {
	accepted := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyPatchType}
	if kind != types.StrategicMergePatchType {
		accepted = append(accepted, types.StrategicMergePatchType)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format (%s) - accepted media types include: %v", kind, accepted),
	}}
}

// apply makes out, an empty object of old's type, from old and the patch. encoded gives old's JSON, if there is one already.
func (p *patch) apply(old runtime.Object, encoded func() []byte, out runtime.Object) error {
	if p.kind == types.StrategicMergePatchType {
		return p.strategic(old, out)
	}
	var before, after []byte
	var err error
	if encoded != nil {
		before = encoded()
	} else if before, err = json.Marshal(old); err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.affordable(before); err != nil {
		return err
	}
	if p.kind == types.JSONPatchType {
		if after, err = p.operate(before); err != nil {
			return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", brief(err.Error()), 0, false)
		}
	} else if after, err = jsonpatch.MergePatch(before, p.data); err != nil {
		if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
			return apierrors.NewBadRequest(err.Error())
		}
		return apierrors.NewInternalError(err)
	}
	if len(after) > maxPatchBytes && len(after) > len(before) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the patched object has %d bytes, limit is %d", len(after), maxPatchBytes))
	}
	if err := payload.Check(after, out); err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	problems, err := kjson.UnmarshalStrict(after, out)
	if err != nil {
		return invalidPatch(string(after), err)
	}
	return p.judge(string(after), problems)
}

// The bounds of the work of a patch, in items of lists that are moved or compared.
const (
	maxMoved    = 50_000_000
	maxCompared = 10_000_000
)

// affordable bounds what the patching of an object costs. The library reads objects level by level and keeps each level's text, and makes a
// new list for each item that is added or removed.
func (p *patch) affordable(before []byte) error {
	have, err := payload.Measure(before, nil)
	if err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	depth := int64(max(have.Depth, p.shape.Depth))
	copied := min(p.copies*int64(len(before)+len(p.data)), maxPatchBytes)
	if have.Nested+p.shape.Nested+copied*depth > payload.MaxNested {
		return apierrors.NewRequestEntityTooLargeError("the patch, or what it patches, is too large for how deep it nests")
	}
	if longest := max(have.Longest, p.shape.Longest) + int64(len(p.ops)); p.indexed*longest > maxMoved {
		return apierrors.NewRequestEntityTooLargeError("the patch changes too many items of too long a list")
	}
	return nil
}

// comparable bounds what a strategic merge costs: each item of a list in the patch is looked for among those of the object.
func (p *patch) comparable(before map[string]any) error {
	const few = 64
	if p.shape.Items <= few {
		return nil
	}
	if (longest(before)+p.shape.Longest)*p.shape.Items > maxCompared {
		return apierrors.NewRequestEntityTooLargeError("the patch would compare too many items of lists")
	}
	return nil
}

// longest is the length of the longest list in an object.
func longest(v any) (n int64) {
	switch v := v.(type) {
	case map[string]any:
		for _, in := range v {
			n = max(n, longest(in))
		}
	case []any:
		n = int64(len(v))
		for _, in := range v {
			n = max(n, longest(in))
		}
	}
	return n
}

func invalidPatch(value string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), brief(value), brief(err.Error()))})
}

// judge refuses, or warns of, unknown and repeated fields.
func (p *patch) judge(value string, problems []error) error {
	all := slices.Concat(p.problems, problems)
	if len(all) == 0 || !p.checks() {
		return nil
	}
	if p.strict == metav1.FieldValidationStrict {
		return invalidPatch(value, runtime.NewStrictDecodingError(all))
	}
	if !p.warned {
		p.warned = true
		for _, e := range all {
			warning.AddWarning(p.ctx, "", e.Error())
		}
	}
	return nil
}

func (p *patch) strategic(old, out runtime.Object) error {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.comparable(before); err != nil {
		return err
	}
	if err := payload.Check(p.data, out); err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	after, err := strategicpatch.StrategicMergeMapPatch(before, runtime.DeepCopyJSON(p.merge), out)
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(brief(err.Error()))
	case errors.Is(err, mergepatch.ErrNoListOfLists), mergepatch.IsPreconditionFailed(err), err != nil:
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", brief(err.Error()), 0, false)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, out, p.checks())
	if err == nil {
		return p.judge(fmt.Sprintf("%+v", p.merge), nil)
	}
	problems, strict := runtime.AsStrictDecodingError(err)
	if !strict {
		return invalidPatch(fmt.Sprintf("%+v", p.merge), err)
	}
	return p.judge(fmt.Sprintf("%+v", p.merge), problems.Errors())
}

package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// Upstream's limits: operations in a JSON patch, and bytes in a patch of any type.
const (
	maxOperations = 10000
	maxPatchBytes = 3 << 20
)

// Patch applies a JSON, merge, strategic merge or apply patch. On a conflict it retries, unless the patch has a
// resourceVersion.
func (r *Registry) Patch(ctx context.Context, t Target, pt types.PatchType, data []byte,
	o metav1.PatchOptions) (Result, error) {
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
	if pt == types.StrategicMergePatchType && t.Resource.Unstructured() {
		return Result{}, unsupportedPatch(pt) // without a Go type, merge keys are unknown
	}
	p := &patch{
		ctx:    c.ctx,
		kind:   pt,
		data:   data,
		strict: o.FieldValidation,
		coerce: c.Resource.Coerce,
		of:     c.Resource.GroupVersionKind,
	}
	if err := p.parse(); err != nil {
		return Result{}, err
	}
	if c.Subresource == "scale" {
		p.coerce, p.of = nil, scaleKind
		return c.rescale(update, true,
			c.tracking(o.FieldManager, func(old *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
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
	// A patched object has the revision that it was made from. If the patch sets another one, that is the caller's
	// precondition, and a mismatch is the only conflict that is not retried.
	w.upsert = false
	w.change = func(e *cache.Entry) (client.Object, error) {
		old, err := As(c.Resource, e)
		if err != nil {
			return nil, err
		}
		out := c.Resource.New()
		managers := old.Object.GetManagedFields()
		if p.managers || len(managers) == 0 || !c.Resource.Proto {
			if err := p.apply(old.Object, old.JSON, out); err != nil {
				return nil, err
			}
			return out, c.checkPatched(out)
		}
		// Managed fields are often half of an object. A patch that does not reach them need not decode them.
		bare := kind.Shallow(old.Object)
		bare.SetManagedFields(nil)
		if err := p.apply(bare, func() []byte { return withoutManagers(old.JSON()) }, out); err != nil {
			return nil, err
		}
		out.SetManagedFields(slices.Clone(managers))
		return out, c.checkPatched(out)
	}
	return w.run()
}

// checkPatched rejects an object whose name a patch changed, removed or did not give.
func (c *call) checkPatched(o client.Object) error {
	if o.GetName() == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must "+
			"be provided", c.Name))
	}
	if is := o.GetObjectKind().GroupVersionKind().GroupVersion(); c.Resource.Unstructured() &&
		is != c.Resource.GroupVersion() {
		return apierrors.NewInvalid(c.Resource.GroupKind(), c.Name, field.ErrorList{
			field.Invalid(field.NewPath("apiVersion"), is.String(), "must be "+c.Resource.GroupVersion().String())})
	}
	return c.checkName(o)
}

// sameRevision checks the precondition of a patch that has a resourceVersion.
func (c *call) sameRevision(now, old client.Object) error {
	if rv := now.GetResourceVersion(); rv != "" && rv != old.GetResourceVersion() {
		return apierrors.NewConflict(c.gr(), c.Name, errModified)
	}
	return nil
}

// patch is parsed once and applied in each attempt.
type patch struct {
	ctx    context.Context
	kind   types.PatchType
	of     schema.GroupVersionKind // kind of the patched object
	data   []byte
	coerce func(client.Object, kind.Coercion) ([]string, error) // of the patched kind; may be nil
	// FieldValidation: Strict, Warn, Ignore; empty is Warn, as upstream's default
	strict string

	ops      jsonpatch.Patch
	merge    map[string]any
	shape    payload.Shape
	copies   int64   // copy operations in a JSON patch
	indexed  int64   // operations with a path that ends in a list index
	managers bool    // it may read or write metadata.managedFields
	problems []error // duplicate and unknown fields in the patch itself
	warned   bool
}

func (p *patch) checks() bool { return p.strict != metav1.FieldValidationIgnore }

func (p *patch) parse() (err error) {
	bad := func(err error) error {
		return apierrors.NewBadRequest(bounded.Text("error decoding patch: "+err.Error(), maxDetail))
	}
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
		metadata, _ := p.merge["metadata"].(map[string]any)
		for name := range metadata {
			p.managers = p.managers || strings.Contains(name, "managedFields")
		}
	default:
		return unsupportedPatch(p.kind)
	}
	return nil
}

func unsupportedPatch(kind types.PatchType) error {
	accepted := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyPatchType}
	if kind != types.StrategicMergePatchType {
		accepted = append(accepted, types.StrategicMergePatchType)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format (%s) - accepted media types include: %v", kind,
			accepted),
	}}
}

// apply sets out, an empty object of old's type, to old with the patch applied. encoded, if not nil, returns old's
// JSON.
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
	if err := p.checkCost(before); err != nil {
		return err
	}
	if p.kind == types.JSONPatchType {
		if after, err = p.applyOperations(before); err != nil {
			return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "",
				bounded.Text(err.Error(), maxDetail), 0, false)
		}
	} else if after, err = jsonpatch.MergePatch(before, p.data); err != nil {
		if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
			return apierrors.NewBadRequest(err.Error())
		}
		return apierrors.NewInternalError(err)
	}
	if len(after) > maxPatchBytes && len(after) > len(before) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the patched object has %d bytes, limit is %d", len(after),
			maxPatchBytes))
	}
	if err := payload.Check(after, out); err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	problems, err := unmarshalStrict(after, out)
	if err == nil && p.coerce != nil {
		var unknown []string
		unknown, err = p.coerce(out.(client.Object), kind.Coercion{Unknown: p.checks()})
		for _, path := range unknown {
			problems = append(problems, fmt.Errorf("unknown field %q", path))
		}
	}
	if err == nil {
		err = p.keepsKind(out)
	}
	if err != nil {
		return invalidPatch(string(after), err)
	}
	return p.reportProblems(func() string { return string(after) }, problems)
}

func (p *patch) keepsKind(out runtime.Object) error {
	if _, ok := out.(*unstructured.Unstructured); ok { // the strategy checks the kind of unstructured objects
		return nil
	}
	is := out.GetObjectKind().GroupVersionKind()
	if is.Kind != "" && is.Kind != p.of.Kind || is.Version != "" && is.GroupVersion() != p.of.GroupVersion() {
		return fmt.Errorf("the patch changes kind or apiVersion from %s of %s to %s of %s, which is not allowed",
			p.of.Kind, p.of.GroupVersion(), is.Kind, is.GroupVersion())
	}
	return nil
}

// unmarshalStrict decodes an object and returns its unknown and repeated fields. The decoder of unstructured
// objects reports neither, so their content is decoded as a map.
func unmarshalStrict(data []byte, out runtime.Object) ([]error, error) {
	u, ok := out.(*unstructured.Unstructured)
	if !ok {
		return kjson.UnmarshalStrict(data, out)
	}
	content := map[string]any{}
	problems, err := kjson.UnmarshalStrict(data, &content)
	u.Object = content
	return problems, err
}

func invalidPatch(value string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "",
		field.ErrorList{
			field.Invalid(field.NewPath("patch"), bounded.Text(value, maxDetail), bounded.Text(err.Error(), maxDetail)),
		})
}

// reportProblems rejects unknown and duplicate fields, or warns of them, depending on FieldValidation. value
// returns the patch for the error message.
func (p *patch) reportProblems(value func() string, problems []error) error {
	all := slices.Concat(p.problems, problems)
	if len(all) == 0 || !p.checks() {
		return nil
	}
	if p.strict == metav1.FieldValidationStrict {
		return invalidPatch(value(), runtime.NewStrictDecodingError(all))
	}
	if !p.warned {
		p.warned = true
		for _, e := range all {
			warning.AddWarning(p.ctx, "", e.Error())
		}
	}
	return nil
}

// strategicMerge is upstream's merge, which panics on malformed directives such as "$retainKeys": [{}].
func strategicMerge(before, patch map[string]any, schema runtime.Object) (after map[string]any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: malformed directive of a strategic merge patch", mergepatch.ErrBadJSONDoc)
		}
	}()
	return strategicpatch.StrategicMergeMapPatch(before, patch, schema)
}

func (p *patch) strategic(old, out runtime.Object) error {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(part(old, p.merge))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	after, err := p.mergeInto(before, out)
	if err != nil {
		return err
	}
	merged := reflect.New(reflect.TypeOf(out).Elem()).Interface().(runtime.Object)
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, merged, p.checks())
	problems, strict := runtime.AsStrictDecodingError(err)
	if err != nil && !strict {
		return invalidPatch(fmt.Sprintf("%+v", p.merge), err)
	}
	graft(out, old, merged, p.merge)
	var found []error
	if strict {
		found = problems.Errors()
	}
	return p.reportProblems(func() string { return fmt.Sprintf("%+v", p.merge) }, found)
}

// mergeInto merges the patch into before, which it modifies. typed is an object of the patched type.
func (p *patch) mergeInto(before map[string]any, typed runtime.Object) (map[string]any, error) {
	if err := p.checkMergeCost(before); err != nil {
		return nil, err
	}
	if err := payload.Check(p.data, typed); err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	after, err := strategicMerge(before, runtime.DeepCopyJSON(p.merge), typed)
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err,
			mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return nil, apierrors.NewBadRequest(bounded.Text(err.Error(), maxDetail))
	case errors.Is(err, mergepatch.ErrNoListOfLists), mergepatch.IsPreconditionFailed(err), err != nil:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "",
			bounded.Text(err.Error(), maxDetail), 0, false)
	}
	return after, nil
}

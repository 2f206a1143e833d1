package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/payload"

	ours "github.com/coracle-dev/coracle/pkg/client"
)

// Who manages which field is recorded from an object's first server-side apply on, as upstream once did and its
// field manager still supports: what was there before is then said to be managed by "before-first-apply". So
// the many objects that are never applied pay nothing for it.

// managers makes the field managers, each when first used: their schema of the built-in kinds is large.
type managers struct {
	mu     sync.Mutex
	of     map[managerKey]*managedfields.FieldManager
	schema managedfields.TypeConverter
}

type managerKey struct {
	row         *kind.Resource
	subresource string
}

func (c *call) fieldManager(strategy any) (*managedfields.FieldManager, error) {
	m := &c.managers
	m.mu.Lock()
	defer m.mu.Unlock()
	key := managerKey{c.Resource, c.Subresource}
	if f := m.of[key]; f != nil {
		return f, nil
	}
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	switch s := strategy.(type) {
	case rest.ResetFieldsStrategy:
		reset = fieldpath.NewExcludeFilterSetMap(s.GetResetFields())
	case rest.ResetFieldsFilterStrategy:
		reset = s.GetResetFieldsFilter()
	}
	v := oneVersion{c.Resource}
	gvk := c.Resource.GroupVersionKind
	var f *managedfields.FieldManager
	var err error
	if c.Resource.Proto {
		if m.schema == nil {
			m.schema = applyconfigurations.NewTypeConverter(ours.Scheme())
		}
		f, err = managedfields.NewDefaultFieldManager(m.schema, v, v, v, gvk, gvk.GroupVersion(), c.Subresource, reset)
	} else {
		f, err = managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), v, v, v, gvk, gvk.GroupVersion(), c.Subresource, reset)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if m.of == nil {
		m.of = map[managerKey]*managedfields.FieldManager{}
	}
	m.of[key] = f
	return f, nil
}

// manage records a write that is no apply, on an object whose managers are recorded at all. old is nil when the
// object is created. It may return another object than it is given.
func (c *call) manage(strategy any, old *cache.Entry, obj client.Object, manager string) (client.Object, error) {
	if old == nil || len(old.Object.GetManagedFields()) == 0 {
		obj.SetManagedFields(nil)
		return obj, nil
	}
	f, err := c.fieldManager(strategy)
	if err != nil {
		return nil, err
	}
	if manager == "" {
		manager = "unknown"
		if c.user != nil && c.user.GetName() != "" {
			manager = c.user.GetName()
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(c.Resource.GroupVersionKind)
	live, err := As(c.Resource, old)
	if err != nil {
		return nil, err
	}
	out, ok := f.UpdateNoErrors(live.Object.DeepCopyObject(), obj, manager).(client.Object)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%s has lost its type while its managers were recorded", c.gr()))
	}
	return out, nil
}

// settleTimes takes back the times in managed fields of a write that changed nothing else.
func settleTimes(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
	m, err := metaOf(obj)
	if err != nil || len(m.GetManagedFields()) == 0 {
		return obj, err
	}
	out, err := fieldmanager.IgnoreManagedFieldsTimestampsTransformer(ctx, obj, old)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return out, nil
}

// apply is server-side apply (KEP-555). It creates the object if it is not there.
func (c *call) apply(data []byte, o *metav1.PatchOptions, update metav1.UpdateOptions) (Result, error) {
	if c.Subresource == "scale" {
		return Result{}, unsupportedPatch(types.ApplyPatchType)
	}
	w, err := c.write(update)
	if err != nil {
		return Result{}, err
	}
	f, err := c.fieldManager(w.strategy)
	if err != nil {
		return Result{}, err
	}
	config, err := c.configuration(data, o.FieldValidation)
	if err != nil {
		return Result{}, err
	}
	w.mayMake, w.applied = c.Subresource == "", true
	w.change = func(e *cache.Entry) (client.Object, error) {
		live := c.Resource.New()
		live.GetObjectKind().SetGroupVersionKind(c.Resource.GroupVersionKind)
		if e != nil {
			shown, err := As(c.Resource, e)
			if err != nil {
				return nil, err
			}
			live = shown.Object.DeepCopyObject().(client.Object)
		}
		patch := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(config)}
		out, err := f.Apply(live, patch, o.FieldManager, o.Force != nil && *o.Force)
		if err != nil {
			if _, ok := err.(apierrors.APIStatus); ok { //nolint:errorlint // the field manager does not wrap
				return nil, err
			}
			return nil, apierrors.NewBadRequest(err.Error()) // the schema says no
		}
		obj, ok := out.(client.Object)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("apply made a %T", out))
		}
		return obj, c.checkName(obj)
	}
	return w.run()
}

// maxApplied bounds the sum of the squares of the lengths of the maps and lists of an applied configuration: sets of fields are kept
// sorted by insertion.
const maxApplied = 12_000 * 12_000

// configuration is what an apply patch says, which is YAML or, from nearly all clients, JSON.
func (c *call) configuration(data []byte, directive string) (map[string]any, error) {
	config := map[string]any{}
	shape, err := payload.Measure(data, &config)
	if err == nil && shape.Maps+shape.Squares > maxApplied {
		err = errManyFields
	}
	if err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	if problems, err := kjson.UnmarshalStrict(data, &config); err == nil && len(problems) == 0 {
		return config, nil
	}
	if err := payload.CheckYAML(data); err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	j, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, apierrors.NewBadRequest(brief("error decoding YAML: " + err.Error()))
	}
	if shape, err = payload.Measure(j, &config); err == nil && shape.Maps+shape.Squares > maxApplied {
		err = errManyFields
	}
	if err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	config = map[string]any{}
	if err := json.Unmarshal(j, &config); err != nil {
		return nil, apierrors.NewBadRequest(brief("error decoding YAML: error unmarshaling JSON: " + err.Error()))
	}
	if directive != metav1.FieldValidationIgnore {
		if _, err := yaml.YAMLToJSONStrict(data); err != nil {
			if directive == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(brief("error strict decoding YAML: error converting YAML to JSON: " + err.Error()))
			}
			warning.AddWarning(c.ctx, "", brief("error converting YAML to JSON: "+err.Error()))
		}
	}
	return config, nil
}

var errManyFields = errors.New("the configuration has too many fields")

// brief cuts what is said of a body that a client sent.
func brief(text string) string {
	const most = 4 << 10
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + " ..."
	}
	return text
}

// oneVersion is the converter, defaulter and maker of a kind that is served in one version: conversion to it only
// gives unstructured objects their type.
type oneVersion struct{ row *kind.Resource }

func (v oneVersion) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk != v.row.GroupVersionKind {
		return nil, runtime.NewNotRegisteredErrForKind("registry", gvk)
	}
	o := v.row.New()
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return o, nil
}

func (v oneVersion) Default(o runtime.Object) {
	if v.row.Default != nil {
		v.row.Default(o)
	}
}

func (v oneVersion) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	gvk := v.row.GroupVersionKind
	if _, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{gvk}); !ok {
		return nil, runtime.NewNotRegisteredGVKErrForTarget("registry", gvk, gv)
	}
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		in.GetObjectKind().SetGroupVersionKind(gvk)
		return in, nil
	}
	if u.GroupVersionKind() != gvk {
		return nil, runtime.NewNotRegisteredErrForKind("registry", u.GroupVersionKind())
	}
	out := v.row.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

func (v oneVersion) Convert(_, _, _ any) error {
	return fmt.Errorf("%s is served in one version", v.row.GR())
}

func (v oneVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

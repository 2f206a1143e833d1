package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/api/registry/fieldset"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	ours "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// managers creates field managers and plans on first use: upstream's schema of the built-in kinds is large.
type managers struct {
	mu     sync.RWMutex
	of     map[managerKey]*managedfields.FieldManager
	plans  map[managerKey]*fieldset.Plan // nil where upstream's field manager is used
	schema managedfields.TypeConverter
}

// maxManagers is the maximum number of field managers, and of plans, that are kept.
const maxManagers = 4096

type managerKey struct {
	row         *kind.Resource
	subresource string
}

// resets returns the fields that writes of a strategy do not change. Upstream's subresources of pods do not pass on the
// reset fields of their strategies (rest.ResetFieldsFilterStrategy).
func resets(strategy any) map[fieldpath.APIVersion]*fieldpath.Set {
	if s, ok := strategy.(rest.ResetFieldsStrategy); ok {
		return s.GetResetFields()
	}
	return nil
}

func (c *call) fieldManager(strategy any) (*managedfields.FieldManager, error) {
	key, reset := managerKey{c.Resource, c.Subresource}, fieldpath.NewExcludeFilterSetMap(resets(strategy))
	if c.Resource.Managers != nil {
		return c.managers.own(key, c.Resource.Managers, reset)
	}
	// CustomResourceDefinitions are not in client-go's schema
	known := c.Resource.Proto && fieldset.Describes(c.Resource.New())
	return c.managers.get(key, versions{c.Resource, c.kinds.Table()}, c.Resource.GroupVersionKind, known, reset)
}

// converter is the interface that upstream's field manager needs for a kind.
type converter interface {
	runtime.ObjectConvertor
	runtime.ObjectDefaulter
	runtime.ObjectCreater
}

func (m *managers) get(key managerKey, v converter, gvk schema.GroupVersionKind, builtin bool,
	reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.of[key]; f != nil {
		return f, nil
	}
	var f *managedfields.FieldManager
	var err error
	if builtin {
		if m.schema == nil {
			m.schema = applyconfigurations.NewTypeConverter(ours.Scheme())
		}
		f, err = managedfields.NewDefaultFieldManager(m.schema, v, v, v, gvk, gvk.GroupVersion(), key.subresource, reset)
	} else {
		types := key.row.Types
		if types == nil || gvk != key.row.GroupVersionKind { // the row's types do not include a subresource's kind
			types = managedfields.NewDeducedTypeConverter()
		}
		f, err = managedfields.NewDefaultCRDFieldManager(types, v, v, v, gvk, gvk.GroupVersion(), key.subresource, reset)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	m.keep(key, f)
	return f, nil
}

func (m *managers) own(key managerKey,
	make func(string, map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error),
	reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.of[key]; f != nil {
		return f, nil
	}
	f, err := make(key.subresource, reset)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	m.keep(key, f)
	return f, nil
}

func (m *managers) keep(key managerKey, f *managedfields.FieldManager) {
	if m.of == nil || len(m.of) >= maxManagers { // some may belong to replaced rows, and all are cheap to recreate
		m.of = map[managerKey]*managedfields.FieldManager{}
	}
	m.of[key] = f
}

// plan returns the plan for comparing the objects that the call writes, or nil to use upstream's field manager.
func (c *call) plan(strategy any) *fieldset.Plan {
	if !c.Resource.Proto && c.Resource.Record == "" || c.Resource.Managers != nil {
		return nil // the kind is not in the schema of the built-in kinds
	}
	m, key := &c.managers, managerKey{c.Resource, c.Subresource}
	m.mu.RLock()
	p, ok := m.plans[key]
	m.mu.RUnlock()
	if ok {
		return p
	}
	reset := resets(strategy)[fieldpath.APIVersion(c.Resource.GroupVersion().String())]
	if c.Resource.Record != "" {
		p = fieldset.NewRecordPlan(c.Resource.New(), c.Resource.Record, reset)
	} else {
		p = fieldset.NewPlan(c.Resource.New(), reset)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plans == nil || len(m.plans) >= maxManagers {
		m.plans = map[managerKey]*fieldset.Plan{}
	}
	m.plans[key] = p
	return p
}

// settleTimes restores the timestamps in managed fields if a write changed nothing else.
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

// apply performs a server-side apply (KEP-555). It creates the object if it does not exist.
func (c *call) apply(data []byte, o *metav1.PatchOptions, update metav1.UpdateOptions) (Result, error) {
	if c.Subresource == "scale" {
		return c.applyScale(data, o, update)
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
	w.upsert, w.applied = c.Subresource == "", true
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
		out, err := applyTo(f, live, config, o)
		if err != nil {
			return nil, err
		}
		obj, ok := out.(client.Object)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("apply made a %T", out))
		}
		return obj, c.checkPatched(obj)
	}
	return w.run()
}

func applyTo(f *managedfields.FieldManager, live runtime.Object, config map[string]any,
	o *metav1.PatchOptions) (runtime.Object, error) {
	patch := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(config)}
	out, err := f.Apply(live, patch, o.FieldManager, o.Force != nil && *o.Force)
	if err != nil {
		if _, ok := err.(apierrors.APIStatus); ok { //nolint:errorlint // the field manager does not wrap
			return nil, err
		}
		return nil, apierrors.NewBadRequest(err.Error()) // the configuration does not match the schema
	}
	return out, nil
}

// maxApplied bounds the sum of the squared lengths of the maps and lists in an applied configuration: upstream
// sorts field sets by insertion.
const maxApplied = 8000 * 8000

// configuration decodes an apply patch, which is YAML or, from nearly all clients, JSON.
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
		return nil, apierrors.NewBadRequest(bounded.Text("error decoding YAML: "+err.Error(), maxDetail))
	}
	if shape, err = payload.Measure(j, &config); err == nil && shape.Maps+shape.Squares > maxApplied {
		err = errManyFields
	}
	if err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	config = map[string]any{}
	if err := json.Unmarshal(j, &config); err != nil {
		return nil, apierrors.NewBadRequest(bounded.Text("error decoding YAML: error unmarshaling JSON: "+err.Error(),
			maxDetail))
	}
	if directive != metav1.FieldValidationIgnore {
		if _, err := yaml.YAMLToJSONStrict(data); err != nil {
			if directive == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(bounded.Text("error strict decoding YAML: error converting YAML to JSON: "+
					err.Error(), maxDetail))
			}
			warning.AddWarning(c.ctx, "", bounded.Text("error converting YAML to JSON: "+err.Error(), maxDetail))
		}
	}
	return config, nil
}

var errManyFields = errors.New("the configuration has too many fields")

// maxDetail limits the part of an error message that depends on a client's request body, in bytes.
const maxDetail = 4 << 10

package custom

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// compiled contains upstream's strategies of one version, with their validators and CEL programs.
type compiled struct {
	main   kind.Strategy
	status rest.RESTUpdateStrategy // nil without a status subresource
}

// lazily holds a value that can be dropped and created again.
type lazily[T any] struct{ atomic.Pointer[T] }

// maxCompiled limits the versions whose compiled strategies are kept. The least recently used one is dropped, and
// compiled again for its next write. The programs of a large schema take megabytes, and milliseconds to compile.
const maxCompiled = 256

// programs tracks the compiled versions in the order of their last use.
type programs struct {
	mu    sync.Mutex
	order list.List // of *version, most recently used first
	at    map[*version]*list.Element
}

// used records the use of a version. Above maxCompiled, it drops the least recently used one.
func (p *programs) used(v *version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.at[v]; e != nil {
		p.order.MoveToFront(e)
		return
	}
	if p.at == nil {
		p.at = map[*version]*list.Element{}
	}
	p.at[v] = p.order.PushFront(v)
	if p.order.Len() > maxCompiled {
		last := p.order.Remove(p.order.Back()).(*version)
		delete(p.at, last)
		last.compiled.Store(nil)
		last.of.dropTypes()
	}
}

// forget removes a version that is no longer served.
func (p *programs) forget(v *version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.at[v]; e != nil {
		p.order.Remove(e)
		delete(p.at, v)
	}
	v.compiled.Store(nil)
}

// compile returns the version's strategies, compiling them if necessary.
func (v *version) compile() (*compiled, error) {
	v.of.shared.programs.used(v)
	if c := v.compiled.Load(); c != nil {
		return c, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if c := v.compiled.Load(); c != nil {
		return c, nil
	}
	c, err := guarded(v.makeCompiled)
	if err != nil {
		return nil, err
	}
	v.compiled.Store(c)
	return c, nil
}

func (v *version) makeCompiled() (*compiled, error) {
	structural, err := v.structural()
	if err != nil {
		return nil, err
	}
	in, err := v.props()
	if err != nil {
		return nil, err
	}
	validator, err := newValidator(in)
	if err != nil {
		return nil, err
	}
	var status *apiextensions.CustomResourceSubresourceStatus
	var statusValidator validation.SchemaValidator
	var scale *apiextensions.CustomResourceSubresourceScale
	if sub := v.spec.Subresources; sub != nil {
		if sub.Status != nil {
			status = &apiextensions.CustomResourceSubresourceStatus{}
			if in != nil {
				if s, ok := in.Properties["status"]; ok {
					if statusValidator, err = newValidator(&s); err != nil {
						return nil, err
					}
				}
			}
		}
		if sub.Scale != nil {
			scale = &apiextensions.CustomResourceSubresourceScale{}
			if err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(
				sub.Scale, scale, nil); err != nil {
				return nil, err
			}
		}
	}
	s := customresource.NewStrategy(crdserverscheme.NewUnstructuredObjectTyper(), v.of.namespaced(), v.gvk, validator,
		statusValidator, structural, status, scale, v.spec.SelectableFields)
	c := &compiled{main: s}
	if status != nil {
		c.status = customresource.NewStatusStrategy(s)
	}
	return c, nil
}

// strategy is upstream's strategy for a version's main resource, compiled on first use. If it cannot be compiled,
// all objects are rejected.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	v *version
}

func newStrategy(v *version) *strategy {
	return &strategy{crdserverscheme.NewUnstructuredObjectTyper(), names.SimpleNameGenerator, v}
}

func (s *strategy) NamespaceScoped() bool                         { return s.v.of.namespaced() }
func (s *strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return false }
func (s *strategy) Canonicalize(runtime.Object)                   {}

func refused(err error) field.ErrorList { return field.ErrorList{field.InternalError(nil, err)} }

func (s *strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if c, err := s.v.compile(); err == nil {
		c.main.PrepareForCreate(ctx, obj)
	}
}

func (s *strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if c, err := s.v.compile(); err == nil {
		c.main.PrepareForUpdate(ctx, obj, old)
	}
}

func (s *strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	c, err := s.v.compile()
	if err != nil {
		return refused(err)
	}
	return withinCPU(ctx, func(ctx context.Context) field.ErrorList { return c.main.Validate(ctx, obj) })
}

func (s *strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	c, err := s.v.compile()
	if err != nil {
		return refused(err)
	}
	return withinCPU(ctx, func(ctx context.Context) field.ErrorList { return c.main.ValidateUpdate(ctx, obj, old) })
}

func (s *strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	c, err := s.v.compile()
	if err != nil {
		return nil
	}
	return c.main.WarningsOnCreate(ctx, obj)
}

func (s *strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	c, err := s.v.compile()
	if err != nil {
		return nil
	}
	return c.main.WarningsOnUpdate(ctx, obj, old)
}

// GetResetFields returns the fields that server-side apply to the main resource must not own.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.v.hasStatus() {
		return map[fieldpath.APIVersion]*fieldpath.Set{}
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{s.v.apiVersion(): fieldpath.NewSet(fieldpath.MakePathOrDie("status"))}
}

type statusStrategy struct{ *strategy }

func (s *statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if c, err := s.v.compile(); err == nil {
		c.status.PrepareForUpdate(ctx, obj, old)
	}
}

func (s *statusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	c, err := s.v.compile()
	if err != nil {
		return refused(err)
	}
	return withinCPU(ctx, func(ctx context.Context) field.ErrorList { return c.status.ValidateUpdate(ctx, obj, old) })
}

func (s *statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields returns the fields that server-side apply to the status must not own, for each version with a
// status subresource.
func (s *statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range s.v.of.versions {
		if v.hasStatus() {
			reset[v.apiVersion()] = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
		}
	}
	return reset
}

func (v *version) hasStatus() bool {
	return v.spec.Subresources != nil && v.spec.Subresources.Status != nil
}

func (v *version) apiVersion() fieldpath.APIVersion {
	return fieldpath.APIVersion(v.gvk.GroupVersion().String())
}

// maxRules limits the processor time to validate an object, in which CEL rules may take most: a rule about all items
// of a list takes time quadratic in its length, as a policy's (see admission's maxCEL).
const maxRules = 500 * time.Millisecond

// withinCPU returns the errors of a validation within maxRules.
func withinCPU(ctx context.Context, validate func(context.Context) field.ErrorList) (errs field.ErrorList) {
	if bounded.CPU(ctx, maxRules, func(ctx context.Context) { errs = validate(ctx) }) {
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), "the validation rules of the definition take more "+
			"than "+maxRules.String()+" of processor time for this object: make its lists shorter")}
	}
	return errs
}

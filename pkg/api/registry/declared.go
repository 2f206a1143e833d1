package registry

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Upstream validates built-in kinds twice: with handwritten code, and with rules generated from tags in the types.
// For the rules, it deep-copies the object into its version. Here the generated rules run first, on a conversion
// without a copy. Upstream's own code runs only to report an error that they or the handwritten checks have found.

type declaring struct {
	rest.DeclarativeValidationStrategy
	row  *kind.Resource // nil if the requested version is not the stored one: then only upstream's code runs
	part []string       // the subresource, if any
}

// ValidateDeclaratively returns upstream's result, at a lower cost for valid objects.
func (d declaring) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object, errs field.ErrorList,
	op operation.Type, config rest.DeclarativeValidationConfig) field.ErrorList {
	if len(errs) == 0 && d.row != nil && config.SubresourceGVKMapper == nil && d.faultless(ctx, obj, old, op, config) {
		return nil
	}
	errs = capErrors(errs) // errors of the metadata are not cut yet
	return capErrors(d.DeclarativeValidationStrategy.ValidateDeclaratively(ctx, obj, old, errs, op, config))
}

func (d declaring) faultless(ctx context.Context, obj, old runtime.Object, op operation.Type,
	config rest.DeclarativeValidationConfig) bool {
	now, err := d.row.External(obj)
	if err != nil {
		return false
	}
	if op == operation.Create {
		return len(legacyscheme.Scheme.Validate(ctx, config.Options, now, d.part...)) == 0
	}
	var was client.Object
	if was, err = d.row.External(old); err != nil {
		return false
	}
	return len(legacyscheme.Scheme.ValidateUpdate(ctx, config.Options, now, was, d.part...)) == 0
}

// maxErrors is the number of validation errors reported for one object. Upstream reports all of them and copies the
// whole message for each: 20,000 empty containers (60 KB) take minutes and hundreds of gigabytes of garbage.
const maxErrors = 200

// capErrors returns at most maxErrors errors, with values that are cut.
func capErrors(errs field.ErrorList) field.ErrorList {
	most, kept := maxValue, errs
	if len(errs) > maxErrors {
		most, kept = maxBadValue, append(field.ErrorList(nil), errs[:maxErrors]...)
	}
	for i, e := range kept {
		if value, ok := e.BadValue.(string); ok && len(value) > most {
			short := *e
			short.BadValue = bounded.Text(value, most)
			kept[i] = &short
		}
	}
	if len(errs) <= maxErrors {
		return kept
	}
	return append(kept,
		field.Forbidden(field.NewPath("..."), fmt.Sprintf("%d more errors are not shown", len(errs)-maxErrors)))
}

// maxValue is the number of bytes shown of each invalid value, and maxBadValue if there are more than maxErrors.
// Upstream quotes a value four times before a client reads it.
const maxValue, maxBadValue = 4 << 10, 256

type cappedCreate struct {
	rest.RESTCreateStrategy
	items int
}

func (s cappedCreate) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return capErrors(s.RESTCreateStrategy.Validate(ctx, obj))
}

func (s cappedCreate) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.items > maxWarned {
		return nil
	}
	return s.RESTCreateStrategy.WarningsOnCreate(ctx, obj)
}

type cappedUpdate struct {
	rest.RESTUpdateStrategy
	items int
}

func (s cappedUpdate) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return capErrors(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

func (s cappedUpdate) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.items > maxWarned {
		return nil
	}
	return s.RESTUpdateStrategy.WarningsOnUpdate(ctx, obj, old)
}

type creating struct {
	rest.RESTCreateStrategy
	declaring
}

// beforeCreate runs upstream's rest.BeforeCreate, with declarative validation as above and at most maxErrors
// errors.
func (c *call) beforeCreate(obj runtime.Object) error {
	s := rest.RESTCreateStrategy(cappedCreate{c.strategy(), c.items})
	if d, ok := c.strategy().(rest.DeclarativeValidationStrategy); ok {
		s = creating{s, declaring{d, c.asStored(), nil}}
	}
	return rest.BeforeCreate(s, c.ctx, obj)
}

func (c *call) asStored() *kind.Resource {
	if c.Resource != c.row {
		return nil
	}
	return c.row
}

type updating struct {
	rest.RESTUpdateStrategy
	declaring
}

func (c *call) beforeUpdate(full rest.RESTUpdateStrategy, obj, old runtime.Object) error {
	if c.Subresource == "" {
		shareSpec(obj, old)
	}
	s := rest.RESTUpdateStrategy(cappedUpdate{full, c.items})
	if d, ok := full.(rest.DeclarativeValidationStrategy); ok {
		var part []string
		if c.Subresource != "" {
			part = []string{c.Subresource}
		}
		s = updating{s, declaring{d, c.asStored(), part}}
	}
	return rest.BeforeUpdate(s, c.ctx, obj, old)
}

// shareSpec makes a pod share the old pod's specification if they are equal. Upstream compares them by reflection
// three times per update, which is expensive unless they share memory. Status updates already share them.
func shareSpec(obj, old runtime.Object) {
	now, ok := obj.(*core.Pod)
	was, alike := old.(*core.Pod)
	if ok && alike && reflect.DeepEqual(&now.Spec, &was.Spec) {
		now.Spec = was.Spec
	}
}

package registry

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Upstream validates built-in kinds twice: by hand, and by rules generated from tags in the types. For the
// second it deep-copies the whole object into its version. Here the rules first see the object converted without a
// copy, and only where they, or the hand-written checks, find fault does upstream's own way say what is wrong.

type declaring struct {
	rest.DeclarativeValidationStrategy
	row  *kind.Resource
	part []string // the subresource, if it is one
}

// ValidateDeclaratively is upstream's, made cheap for objects without fault.
func (d declaring) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object, errs field.ErrorList, op operation.Type, config rest.DeclarativeValidationConfig) field.ErrorList {
	if len(errs) == 0 && config.SubresourceGVKMapper == nil && d.faultless(ctx, obj, old, op, config) {
		return nil
	}
	return few(d.DeclarativeValidationStrategy.ValidateDeclaratively(ctx, obj, old, errs, op, config))
}

func (d declaring) faultless(ctx context.Context, obj, old runtime.Object, op operation.Type, config rest.DeclarativeValidationConfig) bool {
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

// maxErrors is how many faults of one object are reported. Upstream reports all, by a string that it copies for each: 20,000 empty
// containers, in 60 KB, take it minutes and hundreds of gigabytes of garbage.
const maxErrors = 200

func few(errs field.ErrorList) field.ErrorList {
	if len(errs) <= maxErrors {
		return errs
	}
	kept := append(field.ErrorList(nil), errs[:maxErrors]...)
	for i, e := range kept {
		if value, ok := e.BadValue.(string); ok && len(value) > maxBadValue {
			short := *e
			short.BadValue = brief(value[:maxBadValue]) + " ..."
			kept[i] = &short
		}
	}
	return append(kept, field.Forbidden(field.NewPath("..."), fmt.Sprintf("%d more errors are not shown", len(errs)-maxErrors)))
}

// maxBadValue is the length, in bytes, of a wrong value that is shown among many.
const maxBadValue = 256

type fewOnCreate struct{ rest.RESTCreateStrategy }

func (s fewOnCreate) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return few(s.RESTCreateStrategy.Validate(ctx, obj))
}

type fewOnUpdate struct{ rest.RESTUpdateStrategy }

func (s fewOnUpdate) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return few(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

type creating struct {
	rest.RESTCreateStrategy
	declaring
}

// beforeCreate is upstream's BeforeCreate.
func (c *call) beforeCreate(obj runtime.Object) error {
	s := rest.RESTCreateStrategy(fewOnCreate{c.row.Strategy})
	if d, ok := c.row.Strategy.(rest.DeclarativeValidationStrategy); ok && c.Resource == c.row {
		s = creating{s, declaring{d, c.row, nil}}
	}
	return rest.BeforeCreate(s, c.ctx, obj)
}

type updating struct {
	rest.RESTUpdateStrategy
	declaring
}

// beforeUpdate is upstream's BeforeUpdate.
func (c *call) beforeUpdate(full rest.RESTUpdateStrategy, obj, old runtime.Object) error {
	s := rest.RESTUpdateStrategy(fewOnUpdate{full})
	if d, ok := full.(rest.DeclarativeValidationStrategy); ok && c.Resource == c.row {
		var part []string
		if c.Subresource != "" {
			part = []string{c.Subresource}
		}
		s = updating{s, declaring{d, c.row, part}}
	}
	return rest.BeforeUpdate(s, c.ctx, obj, old)
}

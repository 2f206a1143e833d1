package admission

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/admission"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxCEL limits the processor time of CEL expressions for one request: of all policies of a plugin, or of the match
// conditions of all its webhooks. CEL's own limit does not: its cost tracker searches a stack that grows with each
// iteration (cel-go's refValStack.drop), so a policy with data.all(...) takes 2.4 s for a ConfigMap of 38,000 keys.
const maxCEL = 300 * time.Millisecond

// limited runs a plugin that evaluates expressions within maxCEL. An expression that is interrupted fails, and the
// failurePolicy of its policy or webhook applies.
type limited struct {
	admission.Interface
	within func(context.Context, func(context.Context)) // limitPolicies or limitConditions
}

var (
	_ admission.MutationInterface   = limited{}
	_ admission.ValidationInterface = limited{}
)

// limit returns a plugin within its limits.
func (o plugin) limit(p admission.Interface) admission.Interface {
	if o.within != nil {
		return limited{p, o.within}
	}
	return p
}

func limitPolicies(ctx context.Context, do func(context.Context)) { bounded.CPU(ctx, maxCEL, do) }

func (l limited) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	if p, ok := l.Interface.(admission.MutationInterface); ok {
		l.within(ctx, func(ctx context.Context) { err = p.Admit(ctx, a, o) })
	}
	return err
}

func (l limited) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	if p, ok := l.Interface.(admission.ValidationInterface); ok {
		l.within(ctx, func(ctx context.Context) { err = p.Validate(ctx, a, o) })
	}
	return err
}

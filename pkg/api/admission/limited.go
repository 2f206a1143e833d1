package admission

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/admission"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxPolicies limits the processor time of the expressions of all policies of a plugin for one request. CEL's own
// limit does not: its cost tracker searches a stack that grows with each iteration (cel-go's refValStack.drop), so a
// policy with data.all(...) takes 2.4 s for a ConfigMap of 38,000 keys.
const maxPolicies = 300 * time.Millisecond

// limited runs a plugin that evaluates expressions within maxPolicies. An expression that is interrupted fails, and
// its policy's failurePolicy applies.
type limited struct{ admission.Interface }

var (
	_ admission.MutationInterface   = limited{}
	_ admission.ValidationInterface = limited{}
)

// limit returns a plugin within its limits.
func (o plugin) limit(p admission.Interface) admission.Interface {
	if o.cel {
		return limited{p}
	}
	return p
}

func (l limited) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	if p, ok := l.Interface.(admission.MutationInterface); ok {
		bounded.CPU(ctx, maxPolicies, func(ctx context.Context) { err = p.Admit(ctx, a, o) })
	}
	return err
}

func (l limited) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	if p, ok := l.Interface.(admission.ValidationInterface); ok {
		bounded.CPU(ctx, maxPolicies, func(ctx context.Context) { err = p.Validate(ctx, a, o) })
	}
	return err
}

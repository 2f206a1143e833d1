package admission

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/admission"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// The processor time of one request in a plugin that evaluates expressions: of all policies, and of all webhooks, with
// the encoding of what they are sent. CEL's own limit does not bound it: its cost tracker searches a stack that grows
// with each iteration (cel-go's refValStack.drop), so data.all(...) takes 2.4 s for a ConfigMap of 38,000 keys.
const (
	maxPolicies   = 300 * time.Millisecond
	maxConditions = 500 * time.Millisecond
)

// limited runs a plugin that evaluates expressions within its limit. An expression that is interrupted fails, and the
// failurePolicy of its policy or webhook applies. A request that waits for a webhook keeps a thread, so there are as
// many as requests at a time (API priority and fairness).
type limited struct {
	admission.Interface
	most time.Duration
}

var (
	_ admission.MutationInterface   = limited{}
	_ admission.ValidationInterface = limited{}
)

// limit returns a plugin within its limits.
func (o plugin) limit(p admission.Interface) admission.Interface {
	if o.cel > 0 {
		return limited{p, o.cel}
	}
	return p
}

// Admit implements admission.MutationInterface.
func (l limited) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	if p, ok := l.Interface.(admission.MutationInterface); ok {
		bounded.CPU(ctx, l.most, func(ctx context.Context) { err = p.Admit(ctx, a, o) })
	}
	return err
}

// Validate implements admission.ValidationInterface.
func (l limited) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	if p, ok := l.Interface.(admission.ValidationInterface); ok {
		bounded.CPU(ctx, l.most, func(ctx context.Context) { err = p.Validate(ctx, a, o) })
	}
	return err
}

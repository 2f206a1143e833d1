// Package policystatus reports type errors in the expressions of validating admission policies in their status, as
// upstream's validatingadmissionpolicy-status-controller does. Its invariant: it checks each generation of a policy
// once and writes only the status.
package policystatus

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Check returns the warnings about a policy. It must not change the policy.
type Check func(*admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning

// New declares the reconciler.
func New(check Check) *engine.Reconciler {
	policies := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	return &engine.Reconciler{
		Name: "validatingadmissionpolicy-status", Account: "validatingadmissionpolicy-status-controller", Workers: 1,
		Watches: []engine.Watch{{Object: policies}},
		Writes:  []engine.Write{{Object: policies, Parts: []engine.Part{engine.Status}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context,
				p *admissionregistrationv1.ValidatingAdmissionPolicy) (engine.Result, error) {
				next := Plan(p, check)
				if next == nil {
					return engine.Result{}, nil
				}
				return engine.Result{}, env.Client.Status().Update(ctx, next)
			})
		},
	}
}

// Plan returns the policy with its new status, or nil if the status is up to date.
func Plan(p *admissionregistrationv1.ValidatingAdmissionPolicy,
	check Check) *admissionregistrationv1.ValidatingAdmissionPolicy {
	if p.DeletionTimestamp != nil || p.Generation <= p.Status.ObservedGeneration {
		return nil
	}
	next := p.DeepCopy()
	next.Status.ObservedGeneration = p.Generation
	next.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: check(p)}
	return next
}

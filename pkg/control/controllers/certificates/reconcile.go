// Package certificates approves, signs and deletes CertificateSigningRequests, as upstream's controllers csrapproving,
// csrsigning and csrcleaner do. It also deletes old PodCertificateRequests. Its invariant: it signs only approved
// requests. It approves only client certificate requests of nodes whose authors have upstream's permission for that. No
// role grants that permission by default.
package certificates

import (
	"context"
	"crypto/x509"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Signer signs a verified request. It returns the certificate and the rest of its chain as PEM.
type Signer func(r *x509.CertificateRequest, usage x509.KeyUsage, extended []x509.ExtKeyUsage,
	life time.Duration) ([]byte, error)

// New declares the reconciler. signers are the cluster's signers, by name. Requests for other signers are deleted
// when they expire, and otherwise left alone.
func New(signers map[string]Signer) *engine.Reconciler {
	requests := &certificatesv1.CertificateSigningRequest{}
	return &engine.Reconciler{
		Name: "certificates", Account: "certificate-controller", Workers: 1,
		Watches: []engine.Watch{{Object: requests}},
		Writes: []engine.Write{
			{Object: requests, Parts: []engine.Part{engine.Spec, engine.Status, engine.Delete}}, // approval is Spec
			{Object: &authorizationv1.SubjectAccessReview{}, Parts: []engine.Part{engine.Create}},
		},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context,
				r *certificatesv1.CertificateSigningRequest) (engine.Result, error) {
				return reconcile(ctx, env, r, signers)
			})
		},
	}
}

func reconcile(ctx context.Context, env engine.Env, there *certificatesv1.CertificateSigningRequest,
	signers map[string]Signer) (engine.Result, error) {
	a := Plan(there, func(name string) bool { return signers[name] != nil }, env.Now())
	r, result := there.DeepCopy(), engine.Result{RequeueAfter: a.Again}
	switch a.Verb {
	case Delete:
		return result, env.Client.Delete(ctx, r, engine.Unchanged(r)) // unless approved now
	case Approve:
		message, err := permitted(ctx, env, r, a.Approvals)
		if err == nil && message == "" { // a role may grant the permission later
			if wait := retry(env.Now().Sub(r.CreationTimestamp.Time)); result.RequeueAfter == 0 || wait < result.RequeueAfter {
				result.RequeueAfter = wait
			}
		}
		if err != nil || message == "" {
			return result, err
		}
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: message})
		return result, env.Client.SubResource("approval").Update(ctx, r)
	case Sign:
		key, extended := usage(r.Spec.Usages)
		cert, err := signers[r.Spec.SignerName](a.Request, key, extended, life(r))
		if err != nil {
			return result, err
		}
		r.Status.Certificate = cert
		return result, env.Client.Status().Update(ctx, r)
	case Fail:
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure",
			Message:        a.Message,
			LastUpdateTime: metav1.NewTime(env.Now())})
		return result, env.Client.Status().Update(ctx, r)
	}
	return result, nil
}

// retry returns the delay before a permission is checked again: the request's age, from 1 s to 15 min.
func retry(age time.Duration) time.Duration { return max(min(age, 15*time.Minute), time.Second) }

// permitted returns the message of the first approval that the request's author has the permission for, or "".
func permitted(ctx context.Context, env engine.Env, r *certificatesv1.CertificateSigningRequest,
	approvals []Approval) (string, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(r.Spec.Extra))
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	for _, a := range approvals {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: certificatesv1.GroupName, Version: "*",
				Resource: "certificatesigningrequests", Subresource: a.Subresource, Verb: "create"},
		}}
		if err := env.Client.Create(ctx, review); err != nil {
			return "", err
		}
		if review.Status.Allowed {
			return a.Message, nil
		}
	}
	return "", nil
}

package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// Requests are retained as long as upstream retains them.
const (
	retainDecided = time.Hour      // after approval with a certificate, denial or failure
	retainPending = 24 * time.Hour // after creation, or after approval without a certificate
)

const (
	mostLife  = 365 * 24 * time.Hour
	leastLife = 10 * time.Minute
)

// Verb is what to do with a request.
type Verb int

const (
	// Wait leaves the request alone: it is decided, not ours to decide, or waits for an approver.
	Wait Verb = iota
	Delete
	// Approve the request if its author may create one of the subresources in Approvals.
	Approve
	Sign
	// Fail the request with Message.
	Fail
)

// Approval is a reason to approve a request: its author may create the subresource.
type Approval struct{ Subresource, Message string }

// Action is what to do now, and when to plan again. An Again of 0 means only after an event.
type Action struct {
	Verb      Verb
	Approvals []Approval
	Request   *x509.CertificateRequest // for Approve and Sign
	Message   string
	Again     time.Duration
}

// Plan decides about a request. signs reports whether the cluster has the named signer.
func Plan(r *certificatesv1.CertificateSigningRequest, signs func(name string) bool, now time.Time) Action {
	if r.DeletionTimestamp != nil {
		return Action{}
	}
	until := expiry(r)
	if !until.IsZero() && !now.Before(until) {
		return Action{Verb: Delete}
	}
	a := decide(r, signs)
	if !until.IsZero() {
		a.Again = until.Sub(now)
	}
	return a
}

func decide(r *certificatesv1.CertificateSigningRequest, signs func(name string) bool) Action {
	approved, denied, failed := conditions(r)
	if len(r.Status.Certificate) > 0 || denied || failed {
		return Action{}
	}
	rule := rules[r.Spec.SignerName]
	if rule == nil {
		return Action{}
	}
	parsed, err := parse(r.Spec.Request)
	if err != nil {
		return Action{} // the API server accepts only valid requests
	}
	unfit := rule(parsed, r.Spec.Usages)
	switch {
	case approved && !signs(r.Spec.SignerName):
		return Action{}
	case approved && unfit != nil:
		return Action{Verb: Fail, Message: unfit.Error()}
	case approved:
		return Action{Verb: Sign, Request: parsed}
	case unfit != nil || r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName:
		return Action{}
	}
	a := Action{Verb: Approve, Request: parsed}
	if r.Spec.Username == parsed.Subject.CommonName {
		a.Approvals = append(a.Approvals, Approval{
			"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.",
		})
	}
	a.Approvals = append(a.Approvals, Approval{
		"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.",
	})
	return a
}

func conditions(r *certificatesv1.CertificateSigningRequest) (approved, denied, failed bool) {
	for _, c := range r.Status.Conditions {
		approved = approved || c.Type == certificatesv1.CertificateApproved
		denied = denied || c.Type == certificatesv1.CertificateDenied
		failed = failed || c.Type == certificatesv1.CertificateFailed && c.Status == corev1.ConditionTrue
	}
	return approved, denied, failed
}

// expiry returns when to delete a request. Zero means never.
func expiry(r *certificatesv1.CertificateSigningRequest) time.Time {
	var first time.Time
	by := func(t time.Time, retain time.Duration) {
		if !t.IsZero() && (first.IsZero() || t.Add(retain).Before(first)) {
			first = t.Add(retain)
		}
	}
	if len(r.Status.Conditions) == 0 {
		by(r.CreationTimestamp.Time, retainPending)
	}
	_, _, failed := conditions(r)
	for _, c := range r.Status.Conditions {
		switch {
		case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
			by(c.LastUpdateTime.Time, retainDecided)
		case c.Type == certificatesv1.CertificateApproved && failed:
			// It may have failed long after its approval, and its author must be able to read why.
		case c.Type == certificatesv1.CertificateApproved && len(r.Status.Certificate) == 0:
			by(c.LastUpdateTime.Time, retainPending)
		case c.Type == certificatesv1.CertificateApproved:
			from, until := lifetime(r.Status.Certificate)
			if from.Before(c.LastUpdateTime.Time) {
				from = c.LastUpdateTime.Time
			}
			by(from, retainDecided) // it may have been signed long after its approval, and its author must see it
			by(until, 0)
		}
	}
	return first
}

// lifetime returns the validity period of the first certificate in a chain, or zero times if it cannot be parsed.
func lifetime(text []byte) (from, until time.Time) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, time.Time{}
	}
	return cert.NotBefore, cert.NotAfter
}

// life returns the lifetime of the certificate for a request: the requested one within bounds, or the maximum.
func life(r *certificatesv1.CertificateSigningRequest) time.Duration {
	if r.Spec.ExpirationSeconds == nil {
		return mostLife
	}
	return max(min(time.Duration(*r.Spec.ExpirationSeconds)*time.Second, mostLife), leastLife)
}

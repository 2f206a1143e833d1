package certificates

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/model"
)

// TestModel: whatever approvers decide and roles grant, and wherever the process is killed, no request is signed
// without an approval, approved without a permission, or deleted too early. When all actors are idle, each request
// that can be signed is signed. All requests are deleted within a day.
func TestModel(t *testing.T) {
	type csr = certificatesv1.CertificateSigningRequest
	node, person := signingRequest(t, subject("system:node:a", "system:nodes")), signingRequest(t, subject("jane"))
	rapid.Check(t, func(t *rapid.T) {
		var w *model.World
		signers := map[string]Signer{}
		for _, name := range []string{
			certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName,
		} {
			signers[name] = func(*x509.CertificateRequest, x509.KeyUsage, []x509.ExtKeyUsage, time.Duration) ([]byte, error) {
				return certificateFrom(t, w.Now, w.Now.Add(mostLife)), nil
			}
		}
		w = model.New(t, New(signers))
		w.Pause = 15 * time.Minute // so that permissions are checked again
		permitted := false
		w.OnCreate = func(o client.Object) bool {
			review, ok := o.(*authorizationv1.SubjectAccessReview)
			if ok {
				review.Status.Allowed = permitted
			}
			return ok
		}
		changed := map[string]time.Time{} // when the status last changed, by request name
		// timestamps sets the times that the API server would set.
		timestamps := func(r *csr) {
			changed[r.Name] = w.Now
			for i := range r.Status.Conditions {
				if c := &r.Status.Conditions[i]; c.LastUpdateTime.IsZero() {
					c.LastUpdateTime = metav1.NewTime(w.Now)
				}
			}
		}
		w.OnUpdate = func(a, b client.Object) {
			was, is := a.(*csr), b.(*csr)
			before, denied, _ := conditions(was)
			after, _, failed := conditions(is)
			switch {
			case len(is.Status.Certificate) > 0 && (!before || denied || failed):
				w.T.Fatalf("it signs %s: %v", is.Name, was.Status.Conditions)
			case len(was.Status.Certificate) > 0:
				w.T.Fatalf("it changes %s, which is signed", is.Name)
			case after && !before &&
				(!permitted || is.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || denied):
				w.T.Fatalf("it approves %s: %v", is.Name, was.Status.Conditions)
			}
			timestamps(is)
		}
		w.OnDelete = func(o client.Object) {
			r, least := o.(*csr), retainDecided
			if len(r.Status.Conditions) == 0 {
				least = retainPending
			}
			if age := w.Now.Sub(changed[r.Name]); age < least {
				w.T.Fatalf("%s is deleted after %v: %v", r.Name, age, r.Status.Conditions)
			}
		}
		name := rapid.SampledFrom([]string{"x", "y", "z"})
		w.Live(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				n, spec := name.Draw(t, "name"), certificatesv1.CertificateSigningRequestSpec{
					Request: node, Username: "bootstrap", Usages: clientUsages,
				}
				spec.SignerName = rapid.SampledFrom([]string{
					certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName,
					"example.org/other",
				}).Draw(t, "signer")
				if rapid.Bool().Draw(t, "person") {
					spec.Request = person // which no node may have
				}
				if model.Stored[*csr](w)[n] == nil {
					w.Create(&csr{ObjectMeta: metav1.ObjectMeta{Name: n}, Spec: spec})
					changed[n] = w.Now
				}
			},
			"decision": func(t *rapid.T) {
				kind := rapid.SampledFrom([]certificatesv1.RequestConditionType{
					certificatesv1.CertificateApproved, certificatesv1.CertificateDenied,
				}).Draw(t, "decision")
				model.Update(w, name.Draw(t, "name"), func(r *csr) {
					if approved, denied, _ := conditions(r); !approved && !denied {
						r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
							Type: kind, Status: corev1.ConditionTrue,
						})
						timestamps(r)
					}
				})
			},
			"deletion":    func(t *rapid.T) { model.Delete[*csr](w, name.Draw(t, "name")) },
			"role":        func(t *rapid.T) { permitted = rapid.Bool().Draw(t, "permitted") },
			"hours later": func(t *rapid.T) { w.Pass(time.Duration(rapid.IntRange(1, 23).Draw(t, "hours")) * time.Hour) },
		}, func() {})
		w.Settle(w.Pause)
		for _, r := range model.Stored[*csr](w) {
			approved, denied, failed := conditions(r)
			fit := slices.Equal(r.Spec.Request, node) || r.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName
			nodes := r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName
			switch done := len(r.Status.Certificate) > 0; {
			case !approved && !denied && permitted && nodes && fit:
				t.Fatalf("%s is not approved", r.Name)
			case approved && signers[r.Spec.SignerName] != nil && fit != done:
				t.Fatalf("%s is signed: %v, but can be: %v", r.Name, done, fit)
			case approved && signers[r.Spec.SignerName] != nil && fit == failed:
				t.Fatalf("%s has failed: %v, but can be signed: %v", r.Name, failed, fit)
			}
		}
		w.Settle(49 * time.Hour)
		if left := model.Stored[*csr](w); len(left) > 0 {
			t.Fatalf("requests are left: %v", left)
		}
	})
}

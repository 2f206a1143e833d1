package volume

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// issuer is an API with a signer that the test controls.
type issuer struct {
	t *testing.T
	ctrl.WithWatch
}

func newIssuer(t *testing.T) *issuer {
	index := func(f func(*certificatesv1.PodCertificateRequest) string) ctrl.IndexerFunc {
		return func(o ctrl.Object) []string { return []string{f(o.(*certificatesv1.PodCertificateRequest))} }
	}
	request := &certificatesv1.PodCertificateRequest{}
	return &issuer{t, fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithStatusSubresource(request).
		WithIndex(request, "metadata.name", index(func(r *certificatesv1.PodCertificateRequest) string { return r.Name })).
		WithIndex(request, "spec.nodeName", index(func(r *certificatesv1.PodCertificateRequest) string {
			return string(r.Spec.NodeName)
		})).
		WithObjects(
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa", UID: "sa-uid"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-uid"}}).Build()}
}

// open returns the unanswered requests.
func (i *issuer) open() (open []*certificatesv1.PodCertificateRequest) {
	var list certificatesv1.PodCertificateRequestList
	require.NoError(i.t, i.List(context.Background(), &list))
	for k := range list.Items {
		if len(list.Items[k].Status.Conditions) == 0 {
			open = append(open, &list.Items[k])
		}
	}
	return open
}

func (i *issuer) answer(r *certificatesv1.PodCertificateRequest, condition, chain string) {
	r.Status.Conditions = []metav1.Condition{
		{Type: condition, Status: metav1.ConditionTrue, Reason: "R", Message: "M", LastTransitionTime: metav1.Now()},
	}
	if chain != "" {
		r.Status.CertificateChain = chain
		r.Status.BeginRefreshAt = &metav1.Time{Time: time.Now().Add(time.Hour)}
		r.Status.NotAfter = &metav1.Time{Time: time.Now().Add(2 * time.Hour)}
	}
	require.NoError(i.t, i.Status().Update(context.Background(), r))
}

func certifiedPod() (*corev1.Pod, *corev1.PodCertificateProjection) {
	p := podWith()
	p.Spec.NodeName, p.Spec.ServiceAccountName = "n", "sa"
	return p, &corev1.PodCertificateProjection{
		SignerName: "example.org/s", KeyType: "ECDSAP256", MaxExpirationSeconds: new(int32(7200)),
		UserAnnotations: map[string]string{"example.org/a": "b"}, CredentialBundlePath: "bundle", KeyPath: "key",
		CertificateChainPath: "chain",
	}
}

func TestPodCertificateIsRequestedOnceAndRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newIssuer(t)
		c := newPodCertificates(uncached{api})
		p, want := certifiedPod()
		get := func() (*credential, time.Time, error) { return c.get(t.Context(), p, "v", 0, want) }
		for range 3 {
			_, _, err := get()
			require.ErrorIs(t, err, errNotIssued)
		}
		requests := api.open()
		require.Len(t, requests, 1)
		r := requests[0]
		require.Equal(t,
			certificatesv1.PodCertificateRequestSpec{
				SignerName: "example.org/s", PodName: "p", PodUID: "u", ServiceAccountName: "sa", ServiceAccountUID: "sa-uid",
				NodeName: "n", NodeUID: "n-uid", MaxExpirationSeconds: want.MaxExpirationSeconds,
				StubPKCS10Request: r.Spec.StubPKCS10Request, UnverifiedUserAnnotations: want.UserAnnotations,
			}, r.Spec)
		require.Equal(t, "Pod", r.OwnerReferences[0].Kind)
		proof, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
		require.NoError(t, err)
		require.NoError(t, proof.CheckSignature())

		api.answer(r, certificatesv1.PodCertificateRequestConditionTypeIssued,
			"a comment\n"+certificate("leaf")+certificate("between"))
		first, again, err := get()
		require.NoError(t, err)
		require.Equal(t, certificate("leaf")+certificate("between"), string(first.chain))
		block, _ := pem.Decode(first.key)
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		require.NoError(t, err)
		require.Equal(t, proof.PublicKey, key.(crypto.Signer).Public())
		require.WithinRange(t, again, time.Now().Add(time.Hour-time.Second), time.Now().Add(time.Hour+5*time.Minute))
		files := map[string]File{}
		first.write(files, p, want, nil)
		require.Equal(t, string(first.key)+string(first.chain), string(files["bundle"].Data))
		require.Equal(t, string(first.key), string(files["key"].Data))
		require.Equal(t, string(first.chain), string(files["chain"].Data))

		// The old certificate stays until a new one is issued, also if the request is deleted.
		time.Sleep(time.Until(again))
		for range 2 {
			have, _, err := get()
			require.NoError(t, err)
			require.Same(t, first, have)
		}
		requests = api.open()
		require.Len(t, requests, 1)
		require.NoError(t, api.Delete(t.Context(), requests[0]))
		have, _, err := get()
		require.NoError(t, err)
		require.Same(t, first, have)
		requests = api.open()
		require.Len(t, requests, 1)
		api.answer(requests[0], certificatesv1.PodCertificateRequestConditionTypeIssued, certificate("second"))
		second, _, err := get()
		require.NoError(t, err)
		require.Equal(t, certificate("second"), string(second.chain))
		require.NotEqual(t, first.key, second.key)

		// An unanswered request is made again.
		time.Sleep(2 * time.Hour)
		_, again, err = get()
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(requestPatience), again)
		time.Sleep(requestPatience)
		_, _, err = get()
		require.NoError(t, err)
		require.Len(t, api.open(), 2)

		c.forget(p.UID)
		require.Empty(t, c.byKey)
	})
}

func TestPodCertificatesOfAPodAreBounded(t *testing.T) {
	api := newIssuer(t)
	c := newPodCertificates(uncached{api})
	p, want := certifiedPod()
	for i := range 2 * maxPodCertificates {
		_, _, err := c.get(t.Context(), p, "v", i, want)
		if i < maxPodCertificates {
			require.ErrorIs(t, err, errNotIssued)
		} else {
			require.ErrorContains(t, err, "more than 64 podCertificate sources")
		}
	}
	require.Len(t, api.open(), maxPodCertificates)
	c.forget(p.UID)
	_, _, err := c.get(t.Context(), p, "v", 0, want)
	require.ErrorIs(t, err, errNotIssued)
}

func TestPodCertificateThatIsRefused(t *testing.T) {
	for condition, words := range map[string]string{
		certificatesv1.PodCertificateRequestConditionTypeDenied: `permanently denied: reason="R" message="M"`,
		certificatesv1.PodCertificateRequestConditionTypeFailed: `permanently failed: reason="R" message="M"`,
	} {
		api := newIssuer(t)
		c := newPodCertificates(uncached{api})
		p, want := certifiedPod()
		_, _, err := c.get(t.Context(), p, "v", 0, want)
		require.ErrorIs(t, err, errNotIssued)
		api.answer(api.open()[0], condition, "")
		for range 2 {
			_, _, err = c.get(t.Context(), p, "v", 0, want)
			require.ErrorContains(t, err, words)
		}
		require.Empty(t, api.open(), "no other one is requested")
	}
}

func TestPodCertificateWithoutAServiceAccount(t *testing.T) {
	c := newPodCertificates(uncached{newIssuer(t)})
	p, want := certifiedPod()
	p.Spec.ServiceAccountName = "none"
	_, _, err := c.get(t.Context(), p, "v", 0, want)
	require.ErrorContains(t, err, `while fetching service account: serviceaccounts "none" not found`)
	require.False(t, errors.Is(err, errNotIssued))
}

func TestKeysOfPodCertificates(t *testing.T) {
	for _, kind := range []string{"RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		text, proof, err := newKey(kind)
		require.NoError(t, err, kind)
		require.True(t, strings.HasPrefix(string(text), "-----BEGIN PRIVATE KEY-----"), kind)
		r, err := x509.ParseCertificateRequest(proof)
		require.NoError(t, err, kind)
		require.NoError(t, r.CheckSignature(), kind)
	}
	_, _, err := newKey("DSA")
	require.ErrorContains(t, err, `unknown key type "DSA"`)
}

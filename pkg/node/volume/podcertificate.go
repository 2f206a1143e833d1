package volume

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// requestPatience is how long a request may stay unanswered before a new one is made. The cleaner of
// kube-controller-manager deletes requests at that age.
const requestPatience = 15 * time.Minute

// maxPodCertificates limits the certificates of a pod: to make a key of RSA takes this process up to seconds, and a pod
// may have thousands of sources.
const maxPodCertificates = 64

var errNotIssued = errors.New("credential bundle is not issued yet")

// credential is a key, as PKCS #8 PEM, with its certificates, as PEM.
type credential struct {
	key, chain []byte
	// renew is when to request the next certificate.
	renew time.Time
}

type pending struct {
	key     []byte
	request types.NamespacedName
	until   time.Time
}

type podCertificate struct {
	have    *credential // nil before the first one is issued
	waits   *pending    // nil if nothing is requested
	refused error       // the signer's refusal, which is final
}

type podCertificateKey struct {
	uid    types.UID
	volume string
	source int
}

// podCertificates requests certificates for pods (KEP-4317). Keys are only in memory and in the pods' volumes. As in
// the kubelet, they are replaced after a restart of the agent. It is safe for concurrent use, with one call per pod
// at a time.
type podCertificates struct {
	client client.Interface

	mu    sync.Mutex
	byKey map[podCertificateKey]*podCertificate
}

func newPodCertificates(c client.Interface) *podCertificates {
	return &podCertificates{client: c, byKey: map[podCertificateKey]*podCertificate{}}
}

func (c *podCertificates) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.byKey, func(k podCertificateKey, _ *podCertificate) bool { return k.uid == uid })
}

func (c *podCertificates) state(k podCertificateKey) (*podCertificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.byKey[k]; s != nil {
		return s, nil
	}
	ofPod := 0
	for other := range c.byKey {
		if other.uid == k.uid {
			ofPod++
		}
	}
	if ofPod >= maxPodCertificates {
		return nil, fmt.Errorf("the pod's volumes have more than %d podCertificate sources", maxPodCertificates)
	}
	c.byKey[k] = &podCertificate{}
	return c.byKey[k], nil
}

// get returns the credential for a source, and when to call get again if no request changes before. It requests a
// certificate if there is none or if it is time to renew it. Until the new one is issued, get returns the previous
// one or errNotIssued.
func (c *podCertificates) get(ctx context.Context, p *corev1.Pod, volume string, source int,
	want *corev1.PodCertificateProjection) (*credential, time.Time, error) {
	now := time.Now()
	s, err := c.state(podCertificateKey{p.UID, volume, source})
	if err != nil {
		return nil, time.Time{}, err
	}
	if s.waits != nil {
		if err := c.look(ctx, p, s, now); err != nil && s.have == nil {
			return nil, time.Time{}, err
		}
	}
	if s.refused != nil {
		return nil, time.Time{}, s.refused
	}
	if s.waits == nil && (s.have == nil || !now.Before(s.have.renew)) {
		if err := c.request(ctx, p, s, want, now); err != nil {
			if s.have == nil {
				return nil, time.Time{}, err
			}
			return s.have, now.Add(time.Minute), nil // the current certificate is still valid
		}
	}
	switch {
	case s.have == nil:
		return nil, time.Time{}, errNotIssued
	case s.waits != nil:
		return s.have, s.waits.until, nil
	}
	return s.have, s.have.renew, nil
}

func (c *podCertificates) look(ctx context.Context, p *corev1.Pod, s *podCertificate, now time.Time) error {
	var list certificatesv1.PodCertificateRequestList
	// A node may list only the requests for its own pods.
	err := c.client.List(ctx, &list, ctrl.InNamespace(s.waits.request.Namespace),
		ctrl.MatchingFields{"metadata.name": s.waits.request.Name, "spec.nodeName": p.Spec.NodeName})
	if err != nil {
		return fmt.Errorf("PodCertificateRequest %s: %w", s.waits.request, err)
	}
	if len(list.Items) == 0 { // deleted; request again
		s.waits = nil
		return nil
	}
	r := &list.Items[0]
	for _, condition := range r.Status.Conditions {
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			s.refused = fmt.Errorf("PodCertificateRequest was permanently denied: reason=%q message=%q", condition.Reason,
				condition.Message)
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			s.refused = fmt.Errorf("PodCertificateRequest was permanently failed: reason=%q message=%q", condition.Reason,
				condition.Message)
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			issued := &credential{key: s.waits.key, chain: clean(r.Status.CertificateChain)}
			if r.Status.BeginRefreshAt != nil {
				// Jitter: pods that started together should not renew together.
				issued.renew = r.Status.BeginRefreshAt.Add(mathrand.N(5 * time.Minute))
			}
			s.have, s.waits = issued, nil
			return nil
		}
	}
	if s.refused != nil || !now.Before(s.waits.until) {
		s.waits = nil
	}
	return nil
}

func (c *podCertificates) request(ctx context.Context, p *corev1.Pod, s *podCertificate,
	want *corev1.PodCertificateProjection, now time.Time) error {
	account := &corev1.ServiceAccount{}
	if err := c.client.Get(ctx, types.NamespacedName{
		Namespace: p.Namespace, Name: p.Spec.ServiceAccountName,
	}, account); err != nil {
		return fmt.Errorf("while fetching service account: %w", err)
	}
	node := &corev1.Node{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: p.Spec.NodeName}, node); err != nil {
		return fmt.Errorf("while getting node object: %w", err)
	}
	key, proof, err := newKey(want.KeyType)
	if err != nil {
		return err
	}
	r := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}}},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: want.SignerName, PodName: p.Name, PodUID: p.UID, ServiceAccountName: account.Name,
			ServiceAccountUID: account.UID,
			NodeName:          types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: want.MaxExpirationSeconds,
			StubPKCS10Request: proof, UnverifiedUserAnnotations: want.UserAnnotations,
		},
	}
	if err := c.client.Create(ctx, r); err != nil {
		return fmt.Errorf("while creating PodCertificateRequest: %w", err)
	}
	s.waits = &pending{key: key, request: ctrl.ObjectKeyFromObject(r), until: now.Add(requestPatience)}
	return nil
}

// newKey makes a key of an API key type, as PEM, and an empty signing request as proof of possession.
func newKey(kind string) (text, proof []byte, err error) {
	var key crypto.Signer
	switch kind {
	case "RSA3072":
		key, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		err = fmt.Errorf("unknown key type %q", kind)
	}
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), proof, err
}

// clean returns the certificates of a PEM chain without headers and other text.
func clean(chain string) []byte {
	var out []byte
	for rest := []byte(chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
}

func (c *credential) write(files map[string]File, p *corev1.Pod, want *corev1.PodCertificateProjection, def *int32) {
	for path, data := range map[string][]byte{
		want.CredentialBundlePath: slices.Concat(c.key, c.chain), want.KeyPath: c.key, want.CertificateChainPath: c.chain,
	} {
		if path != "" {
			files[path] = ownFile(p, data, def)
		}
	}
}

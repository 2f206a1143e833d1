package builtin

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/api/kinds/kindtest"
)

// A request with a huge key, whose signature would take minutes to verify, is refused.
func TestSigningRequestsAreBounded(t *testing.T) {
	r := Kinds().ByGVK(certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"))
	try := func(block *pem.Block) error {
		_, err := kindtest.Create(r, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(block), SignerName: certificatesv1.KubeAPIServerClientSignerName,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			}})
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	require.NoError(t, try(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))

	// A request with a modulus of 40,000 bytes and an invalid signature.
	var whole struct {
		Info struct {
			Version int
			Subject asn1.RawValue
			Key     struct {
				Algorithm asn1.RawValue
				Bits      asn1.BitString
			}
			Attributes asn1.RawValue
		}
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	_, err = asn1.Unmarshal(der, &whole)
	require.NoError(t, err)
	huge, err := asn1.Marshal(struct {
		N *big.Int
		E int
	}{new(big.Int).SetBit(new(big.Int).Lsh(big.NewInt(1), 320000), 0, 1), 65537})
	require.NoError(t, err)
	whole.Info.Key.Bits = asn1.BitString{Bytes: huge, BitLength: 8 * len(huge)}
	der, err = asn1.Marshal(whole)
	require.NoError(t, err)
	require.ErrorContains(t, try(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), "RSA key of 320001 bits")
	require.ErrorContains(t, try(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: make([]byte, maxSigningRequest)}),
		"Too long")
}

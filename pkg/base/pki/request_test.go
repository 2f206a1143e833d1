package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func signingRequest(t *testing.T, template x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	require.NoError(t, err)
	r, err := x509.ParseCertificateRequest(der)
	require.NoError(t, err)
	return r
}

func certificates(t *testing.T, text []byte) []*x509.Certificate {
	t.Helper()
	var list []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return list
		}
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		list, text = append(list, c), rest
	}
}

func TestSignedRequestsAreNoAuthoritiesAndFollowAReplacement(t *testing.T) {
	keys, err := Load(t.TempDir())
	require.NoError(t, err)
	old := keys.Client.Pool()
	// CA:TRUE
	extension := pkix.Extension{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}
	r := Request{
		CertificateRequest: signingRequest(t, x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "jane", Organization: []string{"dev"}}, ExtraExtensions: []pkix.Extension{extension},
		}),
		Usage: x509.KeyUsageDigitalSignature, Extended: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		Life: time.Hour,
	}
	now := time.Now()
	text, err := keys.Client.SignRequest(r, now)
	require.NoError(t, err)
	cert := certificates(t, text)[0]
	require.False(t, cert.IsCA)
	require.Equal(t, "jane", cert.Subject.CommonName)
	require.WithinDuration(t, now.Add(time.Hour), cert.NotAfter, time.Second)
	require.WithinDuration(t, now.Add(-5*time.Minute), cert.NotBefore, time.Second)

	require.NoError(t, keys.Replace(keys.Client))
	r.Life = 24 * time.Hour
	text, err = keys.Client.SignRequest(r, now)
	require.NoError(t, err)
	chain := certificates(t, text)
	require.Len(t, chain, 2, "the new authority, signed by the old one, comes with it")
	require.WithinDuration(t, now.Add(24*time.Hour-5*time.Minute), chain[0].NotAfter, time.Second)
	between := x509.NewCertPool()
	between.AddCert(chain[1])
	for _, roots := range []*x509.CertPool{old, keys.Client.Pool()} {
		_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: r.Extended})
		require.NoError(t, err)
	}

	r.Signature = append([]byte{^r.Signature[0]}, r.Signature[1:]...)
	_, err = keys.Client.SignRequest(r, now)
	require.ErrorContains(t, err, "unable to verify certificate request signature")
	present, _ := keys.Client.Certificates()
	_, err = keys.Client.SignRequest(r, present.NotAfter)
	require.Error(t, err)
}

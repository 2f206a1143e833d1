package pki

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func foreignPEM(t *testing.T, key *rsa.PrivateKey) (cert, private []byte) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

// A key of 65,536 bits is refused before it is parsed, which would take half a minute.
func TestForeignPairIsBounded(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	cert, private := foreignPEM(t, key)
	pair, err := ForeignPair(cert, private)
	require.NoError(t, err)
	require.NotNil(t, pair.Leaf)

	odd := func(bits uint) *big.Int {
		return new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), bits), big.NewInt(1))
	}
	large, err := asn1.Marshal(struct {
		Version                int
		N, E, D, P, Q, A, B, C *big.Int
	}{0, odd(65_535), big.NewInt(65_537), odd(65_534), odd(32_767), odd(32_766), odd(32_765), odd(32_764), odd(32_763)})
	require.NoError(t, err)
	began := time.Now()
	_, err = ForeignPair(cert, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: large}))
	require.ErrorContains(t, err, "at most 8192 bits")
	_, err = ForeignPair(make([]byte, 1<<20), private)
	require.ErrorContains(t, err, "more than")
	require.Less(t, time.Since(began), time.Second)

	// Parameters that are not a key's are refused before a handshake uses them.
	three := big.NewInt(3)
	for name, c := range map[string]struct{ e, d, p *big.Int }{
		"a prime that is no factor": {big.NewInt(int64(key.E)), key.D, odd(1023)},
		"an even exponent":          {big.NewInt(65_536), key.D, key.Primes[0]},
		"an exponent of 1,025 bits": {odd(1024), key.D, key.Primes[0]},
		"another private exponent":  {big.NewInt(int64(key.E)), three, key.Primes[0]},
	} {
		der, err := asn1.Marshal(struct {
			Version                int
			N, E, D, P, Q, A, B, C *big.Int
		}{0, key.N, c.e, c.d, c.p, key.Primes[1], key.Precomputed.Dp, key.Precomputed.Dq, key.Precomputed.Qinv})
		require.NoError(t, err)
		_, err = ForeignPair(cert, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der}))
		require.ErrorContains(t, err, "not a certificate and its key", name)
	}

	_, err = ForeignPair(private, private)
	require.ErrorContains(t, err, "not a certificate and its key")
	require.NotContains(t, err.Error(), "BEGIN")
}

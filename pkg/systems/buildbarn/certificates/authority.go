// Package certificates makes the authority of a Buildbarn farm, the certificates of its parts, and what its clients
// show to be let in. They are kept in Secrets, so that a farm needs nothing but Kubernetes.
//
// Its invariant: what Issue returns, Due accepts until two thirds of its lifetime are over.
package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
)

// The keys of Secrets. The first three are those of kubernetes.io/tls and of cert-manager.
const (
	Certificate = "tls.crt"
	Key         = "tls.key"
	Authorities = "ca.crt"
	// Token is a JSON Web Token (RFC 7519) in the Secret of clients, TokenKey the key that signs it in that of the
	// authority.
	Token    = "token"
	TokenKey = "token.key"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// skew tolerates verifiers whose clock is behind.
	skew = time.Hour
)

// Authority signs the certificates and tokens of one farm.
type Authority struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	token *ecdsa.PrivateKey
	pem   []byte
}

// NewAuthority returns the content of the Secret of a new authority, which is valid for ten years.
func NewAuthority(name string, now time.Time) (map[string][]byte, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	_, tokenPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := sign(template, template, key, key, now, authorityLife)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{Certificate: der, Key: keyPEM, TokenKey: tokenPEM}, nil
}

// ParseAuthority reads the content of the Secret of an authority. The error says what is wrong with it, for people.
func ParseAuthority(data map[string][]byte, now time.Time) (*Authority, error) {
	a := &Authority{pem: data[Certificate]}
	var err error
	if a.cert, err = parseCertificate(data[Certificate]); err != nil {
		return nil, fmt.Errorf("%s: %w", Certificate, err)
	}
	if a.key, err = parseKey(data[Key]); err != nil {
		return nil, fmt.Errorf("%s: %w", Key, err)
	}
	if a.token, err = parseKey(data[TokenKey]); err != nil {
		return nil, fmt.Errorf("%s: %w", TokenKey, err)
	}
	switch {
	case !belongs(a.cert, a.key):
		return nil, fmt.Errorf("%s does not belong to %s", Key, Certificate)
	case !a.cert.IsCA:
		return nil, fmt.Errorf("%s is not the certificate of an authority", Certificate)
	case now.After(a.cert.NotAfter):
		return nil, fmt.Errorf("%s has expired on %s", Certificate, a.cert.NotAfter.Format(time.DateOnly))
	}
	return a, nil
}

// PEM is the authority's certificate.
func (a *Authority) PEM() string { return string(a.pem) }

// TokenKeys are the keys with which tokens are verified, as a JSON Web Key Set (RFC 7517).
func (a *Authority) TokenKeys() (map[string]any, error) {
	text, err := json.Marshal(jose.JSONWebKeySet{
		Keys: []jose.JSONWebKey{{Key: a.token.Public(), Algorithm: string(jose.ES256), Use: "sig"}},
	})
	if err != nil {
		return nil, err
	}
	var set map[string]any
	return set, json.Unmarshal(text, &set)
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	// PKCS #8, which build tools that are not written in Go read.
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("is not in PEM format")
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("is not a key of the curve P-256")
	}
	return key, nil
}

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("is not in PEM format")
	}
	return x509.ParseCertificate(block.Bytes)
}

func belongs(c *x509.Certificate, key *ecdsa.PrivateKey) bool {
	public, ok := c.PublicKey.(*ecdsa.PublicKey)
	return ok && public.Equal(key.Public())
}

// sign returns a certificate in PEM format.
func sign(template, parent *x509.Certificate, of, by *ecdsa.PrivateKey, now time.Time,
	life time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-skew), now.Add(life)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, of.Public(), by)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

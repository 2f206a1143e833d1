// Package certificates makes the certificate authority of a Buildbarn farm, the certificates of its parts, and the
// certificates and tokens of its clients. They are stored in Secrets, so a farm needs no service besides Kubernetes.
// Its invariant: Due accepts a Secret that Issue returned until two thirds of its lifetime have passed.
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

// The keys of Secrets. The first three are the keys that kubernetes.io/tls and cert-manager use.
const (
	Certificate = "tls.crt"
	Key         = "tls.key"
	Authorities = "ca.crt"
	// Token is a JSON Web Token (RFC 7519) in the clients' Secret. TokenKey is its signing key in the authority's
	// Secret.
	Token    = "token"
	TokenKey = "token.key"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// skew backdates certificates and tokens, for verifiers whose clocks are slow.
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

// ParseAuthority reads the content of an authority's Secret. Its error is written for users.
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

// PEM returns the authority's certificate.
func (a *Authority) PEM() string { return string(a.pem) }

// TokenKeys returns the public keys that verify tokens, as a JSON Web Key Set (RFC 7517).
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
	// Build tools that are not written in Go read PKCS #8.
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

// sign returns a certificate in PEM format, valid from skew before now.
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

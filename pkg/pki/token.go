package pki

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base32"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

const tokenVersion = "coracle1"

var lowerBase32 = base32.StdEncoding.WithPadding(base32.NoPadding)

// Token is the secret with which an agent joins, written
// "coracle1.<SHA-256 of the server authority>.<secret>". The hash lets the agent know its server before it says the
// secret. The secret is derived from the client authority's key, so it is stored nowhere.
func (s *Set) Token() string {
	return strings.Join([]string{tokenVersion, fingerprint(s.Server.cert), s.secret()}, ".")
}

// CheckToken reports whether somebody's token is the cluster's, in constant time.
func (s *Set) CheckToken(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.Token())) == 1
}

func (s *Set) secret() string {
	key, err := s.Client.key.Bytes()
	if err != nil {
		panic(err) // only for a curve that we never make keys of
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("join"))
	return strings.ToLower(lowerBase32.EncodeToString(mac.Sum(nil)[:20]))
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// VerifyAuthority checks that the authority which a server showed is the one that token was made for, and returns a
// pool that trusts it.
func VerifyAuthority(token string, authority []byte) (*x509.CertPool, error) {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 || parts[0] != tokenVersion {
		return nil, errors.New("this is not a join token: copy the whole line that `coracle status` shows on the server")
	}
	block, _ := pem.Decode(bytes.TrimSpace(authority))
	if block == nil {
		return nil, errors.New("the server showed no certificate authority: is it a Coracle server?")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the server's certificate authority: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(fingerprint(cert)), []byte(parts[1])) != 1 {
		return nil, errors.New("the server is not the one that the token was made for: check --join, or copy the token again")
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool, nil
}

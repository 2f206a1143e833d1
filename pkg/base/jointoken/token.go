// Package jointoken implements the credential that a machine needs to join a cluster: its format and its storage.
//
// Invariant: the cluster never stores a token's secret, only its SHA-256, so that the API, etcd and backups do not
// allow anyone to join.
//
// A token is stored as a Secret with its own type in kube-system. Upstream's bootstrap tokens
// (bootstrap.kubernetes.io/token) store their secret in clear text, because they also sign cluster-info; join tokens
// only need to be recognized. A secret has 160 random bits, so a plain hash is sufficient.
package jointoken

import (
	"bytes"
	"crypto/rand"
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

const (
	version              = "coracle2"
	idBytes, secretBytes = 5, 20
	// MaxLength is the maximum length of a token's text, in bytes.
	MaxLength = 256
)

var alphabet = base32.StdEncoding.WithPadding(base32.NoPadding)

// Token has the form "coracle2.<SHA-256 of the server's CA>.<ID>.<secret>". The hash lets a machine verify the server
// before it sends the secret.
type Token struct {
	authority string // hexadecimal
	// ID identifies the token. It is not secret.
	ID     string
	secret string
}

// New generates a token for the cluster whose server CA is the first certificate in authority (PEM).
func New(authority []byte) (Token, error) {
	cert, _, err := nextCertificate(authority)
	if err != nil {
		return Token{}, err
	}
	if cert == nil {
		return Token{}, errors.New("there is no certificate authority to make a token for")
	}
	return Token{fingerprint(cert), random(idBytes), random(secretBytes)}, nil
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return strings.ToLower(alphabet.EncodeToString(b))
}

// Parse parses a token. Surrounding space is ignored.
func Parse(text string) (Token, error) {
	wrong := errors.New("this is not a join token: `coracle token create` on the server makes one")
	if len(text) > MaxLength {
		return Token{}, wrong
	}
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != version {
		return Token{}, wrong
	}
	t := Token{parts[1], parts[2], parts[3]}
	if hash, err := hex.DecodeString(t.authority); err != nil || len(hash) != sha256.Size || !encoded(t.ID, idBytes) ||
		!encoded(t.secret, secretBytes) {
		return Token{}, wrong
	}
	return t, nil
}

// encoded reports whether s has the form of random(n).
func encoded(s string, n int) bool {
	b, err := alphabet.DecodeString(strings.ToUpper(s))
	return err == nil && len(b) == n && s == strings.ToLower(s)
}

// String returns the whole token, including its secret.
func (t Token) String() string {
	return strings.Join([]string{version, t.authority, t.ID, t.secret}, ".")
}

func (t Token) hash() string {
	sum := sha256.Sum256([]byte(t.secret))
	return hex.EncodeToString(sum[:])
}

// Authority returns the certificate that the token was made for, out of the PEM certificates that a server presents.
func (t Token) Authority(shown []byte) (*x509.Certificate, error) {
	for first := true; ; first = false {
		cert, rest, err := nextCertificate(shown)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the server's certificate authority: %w", err)
		case cert == nil && first:
			return nil, errors.New("the server showed no certificate authority: is it a Coracle server?")
		case cert == nil:
			return nil, errors.New("the server is not the one that the token was made for: check --join, or make a new token " +
				"there")
		case subtle.ConstantTimeCompare([]byte(fingerprint(cert)), []byte(t.authority)) == 1:
			return cert, nil
		}
		shown = rest
	}
}

// nextCertificate returns a nil certificate at the end of data.
func nextCertificate(data []byte) (*x509.Certificate, []byte, error) {
	block, rest := pem.Decode(bytes.TrimSpace(data))
	if block == nil {
		return nil, nil, nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	return cert, rest, err
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

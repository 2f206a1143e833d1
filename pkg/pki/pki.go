// Package pki makes and keeps the cluster's keys: three certificate authorities
// (one signs the API, one signs clients, one signs what nodes serve) and the key that signs service
// account tokens.
//
// It may import nothing of Coracle but bounded. Its invariant: only authorities, signing
// keys and a joined machine's own key are on disk (0600). Every leaf certificate is made in memory and
// made again once two thirds of its life are over (see Renewal), so that no cluster stops because one expired.
//
// Decisions: who holds a join token chooses the names and addresses in a node's serving certificate, so these
// have an authority of their own, which nobody believes but the API server: no joined machine can pass for the API.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

const (
	authorityLife = 30 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// skew tolerates a verifier whose clock is behind ours.
	skew = time.Hour
)

// Set is the keys of one cluster.
type Set struct {
	// Server signs the API's serving certificate; its own is what clients, pods and agents trust.
	Server *Authority
	// Client signs client certificates; the API server and the agents trust it.
	Client *Authority
	// Node signs what nodes serve; the API server alone trusts it.
	Node *Authority
	// ServiceAccount signs service account tokens. Retired are earlier ones.
	ServiceAccount *ecdsa.PrivateKey
	Retired        []RetiredKey
}

// Load reads the cluster's keys from dir, and makes those that are missing. A half-written
// file cannot be met: each is written beside and renamed.
func Load(dir string) (*Set, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := loadAuthority(dir, "server-ca", "coracle-server")
	if err != nil {
		return nil, err
	}
	client, err := loadAuthority(dir, "client-ca", "coracle-client")
	if err != nil {
		return nil, err
	}
	node, err := loadAuthority(dir, "node-ca", "coracle-node")
	if err != nil {
		return nil, err
	}
	account, err := LoadKey(filepath.Join(dir, accountKeyFile))
	if err != nil {
		return nil, err
	}
	retired, err := loadRetired(filepath.Join(dir, retiredAccountFile))
	if err != nil {
		return nil, err
	}
	return &Set{Server: server, Client: client, Node: node, ServiceAccount: account, Retired: retired}, nil
}

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is the authority's certificate.
	PEM []byte
}

// Pool trusts this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Identity is the hash of the authority's key, as of the function Identity.
func (a *Authority) Identity() (string, error) { return Identity(a.key.Public()) }

// Identity names a key: "sha256:" and the hash of its PKIX form, in hexadecimal.
func Identity(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(der)), nil
}

func loadAuthority(dir, file, name string) (*Authority, error) {
	key, err := LoadKey(filepath.Join(dir, file+".key"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, file+".crt")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		template := &x509.Certificate{
			Subject:               pkix.Name{CommonName: name},
			IsCA:                  true,
			BasicConstraintsValid: true,
			KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		}
		der, serr := sign(template, template, key.Public(), key, authorityLife)
		if serr != nil {
			return nil, serr
		}
		data = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		err = WriteFile(path, data)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no certificate: restore it from a backup, or delete the cluster with `coracle delete`", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("%s does not belong to the key beside it: restore both from one backup", path)
	}
	return &Authority{cert: cert, key: key, PEM: data}, nil
}

// Leaf says what a certificate is for.
type Leaf struct {
	// Name is the common name: the user of a client certificate.
	Name string
	// Groups are the organizations: the groups of a client certificate.
	Groups []string
	// Hosts are the names and addresses that a serving certificate stands for; none makes a client certificate.
	Hosts []string
	// Life is how long it lasts; 0 is one year.
	Life time.Duration
}

// Sign certifies somebody's public key. It returns PEM.
func (a *Authority) Sign(leaf Leaf, public crypto.PublicKey) ([]byte, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: leaf.Name, Organization: leaf.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(leaf.Hosts) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	life := leaf.Life
	if life == 0 {
		life = leafLife
	}
	der, err := sign(template, a.cert, public, a.key, life)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Issue makes a key and its certificate, both as PEM.
func (a *Authority) Issue(leaf Leaf) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert, err = a.Sign(leaf, private.Public())
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	return cert, key, err
}

// Renewal is when a certificate is to be replaced: when two thirds of its life are over. The last third is for
// whoever cannot have a new one at once.
func Renewal(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// Pair joins a certificate that an authority has signed with the key that it is for, which must fit.
func Pair(cert []byte, key *ecdsa.PrivateKey) (tls.Certificate, error) {
	private, err := encodeKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, private)
}

// Source gives a certificate that is always good: it issues a new one when the old one's Renewal has come.
// Its functions fit tls.Config.
type Source struct {
	issue   func() (*tls.Certificate, error)
	current atomic.Pointer[tls.Certificate]
}

// NewSource issues the first certificate of leaf.
func (a *Authority) NewSource(leaf Leaf) (*Source, error) {
	s := &Source{issue: func() (*tls.Certificate, error) {
		cert, key, err := a.Issue(leaf)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		return &pair, err
	}}
	_, err := s.get(time.Now())
	return s, err
}

func (s *Source) get(now time.Time) (*tls.Certificate, error) {
	if c := s.current.Load(); c != nil && now.Before(Renewal(c.Leaf)) {
		return c, nil
	}
	c, err := s.issue()
	if err != nil {
		return nil, err
	}
	s.current.Store(c)
	return c, nil
}

// Server fits tls.Config.GetCertificate.
func (s *Source) Server(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.get(time.Now()) }

// Client fits tls.Config.GetClientCertificate.
func (s *Source) Client(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return s.get(time.Now())
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer, life time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template.SerialNumber = serial
	template.NotBefore = now.Add(-skew)
	template.NotAfter = now.Add(life)
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

// LoadKey reads a private key, and makes it if it is missing: when LoadKey returns, the key is on disk to stay.
func LoadKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		data, err := encodeKey(key)
		if err != nil {
			return nil, err
		}
		return key, WriteFile(path, data)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no key: restore it from a backup, or delete the cluster with `coracle delete`", path)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// WriteFile writes a file that only its owner may read, whole or not at all, and on disk when it returns.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Package pki generates and stores the cluster's keys: three CAs (for the API, for clients, and for nodes' serving
// certificates) and the key that signs service account tokens.
//
// Invariant: only CAs, signing keys and a joined machine's own key are on disk (0600). Leaf certificates are in memory
// and renewed after two thirds of their lifetime (see Renewal), so that no cluster stops because one expired.
//
// The holder of a join token chooses the names and addresses in a node's serving certificate. Nodes therefore have
// their own CA, which only the API server trusts, and pods that verify nodes by the ClusterTrustBundle of
// kubernetes.io/kubelet-serving. No joined machine can impersonate the API.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
)

const (
	leafLife = 365 * 24 * time.Hour
	// skew tolerates verifiers whose clock is behind.
	skew = time.Hour
)

// authorityFrom and authorityUntil are the validity of CAs. It does not depend on the machine's clock, since boards
// without one boot in 1970: they may create a cluster before the clock is set, or start one of today.
var (
	authorityFrom  = time.Unix(0, 0)
	authorityUntil = time.Date(2100, time.January, 1, 0, 0, 0, 0, time.UTC)
)

// Set holds the certificate authorities of a cluster.
type Set struct {
	// Server signs the API's serving certificate; clients, pods and agents trust it.
	Server *Authority
	// Client signs client certificates; the API server and the agents trust it.
	Client *Authority
	// Node signs nodes' serving certificates; the API server trusts it, clients of the API do not.
	Node *Authority
	// Machine is the identity of the server's own machine: the Identity of the cluster's first client CA.
	Machine string
	// ServiceAccount signs service account tokens. Retired are earlier keys.
	ServiceAccount *ecdsa.PrivateKey
	Retired        []RetiredKey
}

// Load reads the cluster's keys from dir, and generates missing ones.
func Load(dir string) (*Set, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := removeUnfinished(dir); err != nil {
		return nil, err
	}
	s := &Set{}
	var err error
	for _, a := range []struct {
		to         **Authority
		name, file string
	}{{&s.Server, "server", "server-ca"}, {&s.Client, "client", "client-ca"}, {&s.Node, "node", "node-ca"}} {
		if *a.to, err = loadAuthority(dir, a.name, a.file); err != nil {
			return nil, err
		}
	}
	if s.Machine, err = loadMachine(dir, s.Client); err != nil {
		return nil, err
	}
	if s.ServiceAccount, err = LoadKey(filepath.Join(dir, accountKeyFile)); err != nil {
		return nil, err
	}
	s.Retired, err = loadRetired(filepath.Join(dir, retiredAccountFile))
	return s, err
}

// LoadFrontProxy reads the CA of the API server's client certificate for aggregated API servers, and generates it if
// it is missing. It signs nothing else: the holder of such a certificate can act as any user of the aggregated
// servers. It is not in Set.Authorities and cannot be replaced while the cluster runs.
func LoadFrontProxy(dir string) (*Authority, error) {
	return loadAuthority(dir, "front-proxy", "front-proxy-ca")
}

// removeUnfinished removes temporary files of a killed process, which may contain keys.
func removeUnfinished(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*"+atomicfile.Suffix))
	for _, file := range left {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// Renewal returns the time at which a certificate should be renewed: after two thirds of its lifetime. The last third
// is for retries.
func Renewal(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// Pair combines a PEM certificate chain with its key, which must match.
func Pair(cert []byte, key *ecdsa.PrivateKey) (tls.Certificate, error) {
	private, err := encodeKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, private)
}

// Source provides a valid certificate: it issues a new one at Renewal and when the authority is replaced. Its methods
// fit the callbacks of tls.Config.
type Source struct {
	authority *Authority
	leaf      Leaf
	current   atomic.Pointer[issued]
}

type issued struct {
	*tls.Certificate
	by *generation
}

// NewSource issues the first certificate for leaf.
func (a *Authority) NewSource(leaf Leaf) (*Source, error) {
	s := &Source{authority: a, leaf: leaf}
	_, err := s.get(time.Now())
	return s, err
}

func (s *Source) get(now time.Time) (*tls.Certificate, error) {
	by := s.authority.present.Load()
	if c := s.current.Load(); c != nil && c.by == by && now.After(c.Leaf.NotBefore) && now.Before(Renewal(c.Leaf)) {
		return c.Certificate, nil
	}
	cert, key, err := by.issue(s.leaf)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	s.current.Store(&issued{&pair, by})
	return &pair, nil
}

// Server implements tls.Config.GetCertificate.
func (s *Source) Server(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.get(time.Now()) }

// Client implements tls.Config.GetClientCertificate.
func (s *Source) Client(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return s.get(time.Now())
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer,
	from, until time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, from, until
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

// LoadKey reads a private key, and generates it if the file does not exist. The key is durable when it returns.
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
		return key, atomicfile.WriteDurably(path, data)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s has no key: restore it from a backup, or delete the cluster with `coracle delete`", path)
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

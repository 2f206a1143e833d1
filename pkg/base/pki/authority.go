package pki

import (
	"cmp"
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
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
)

// Authority is a CA. It is safe for concurrent use, including its replacement.
type Authority struct {
	// Name is one of server, client, node and front-proxy.
	Name string

	dir, file string
	present   atomic.Pointer[generation]
}

// generation is the immutable state of an authority between two changes.
type generation struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// old is the certificate being replaced. cross is a certificate for key that the old key signed. Both are nil if
	// no replacement is in progress.
	old, cross *x509.Certificate
	// bundle is cert and old, if any, as PEM; pool has the same certificates.
	bundle []byte
	pool   *x509.CertPool
}

func newGeneration(cert *x509.Certificate, key *ecdsa.PrivateKey, old, cross *x509.Certificate) *generation {
	g := &generation{cert: cert, key: key, old: old, cross: cross, pool: x509.NewCertPool()}
	for _, c := range []*x509.Certificate{cert, old} {
		if c != nil {
			g.pool.AddCert(c)
			g.bundle = append(g.bundle, encodeCertificate(c)...)
		}
	}
	return g
}

// Bundle returns the trusted certificates as PEM: the authority's and, during a replacement, the old one.
func (a *Authority) Bundle() []byte { return a.present.Load().bundle }

// Pool returns Bundle as a pool, which is the same until the next change.
func (a *Authority) Pool() *x509.CertPool { return a.present.Load().pool }

// Replaced returns the time at which the replacement in progress began, or zero.
func (a *Authority) Replaced() time.Time {
	if cross := a.present.Load().cross; cross != nil {
		return cross.NotBefore.Add(skew)
	}
	return time.Time{}
}

// Identity returns the Identity of the authority's key.
func (a *Authority) Identity() (string, error) { return Identity(a.present.Load().key.Public()) }

// Identity identifies a key: "sha256:" and the hash of its PKIX form, in hexadecimal.
func Identity(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(der)), nil
}

func loadAuthority(dir, name, file string) (*Authority, error) {
	a := &Authority{Name: name, dir: dir, file: file}
	next, err := a.loadNext()
	if err != nil {
		return nil, err
	}
	if err := a.checkKey(); err != nil {
		return nil, err
	}
	key, err := LoadKey(a.path(".key"))
	if err != nil {
		return nil, err
	}
	if next != nil && next.key.Equal(key) {
		// Finish was interrupted after its first step.
		if err := a.settle(onDisk{}, next); err != nil {
			return nil, err
		}
	}
	path := a.path(".crt")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		var cert *x509.Certificate
		if cert, err = selfSigned("coracle-"+name, key); err == nil {
			data = encodeCertificate(cert)
			err = atomicfile.WriteDurably(path, data)
		}
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate: restore it from a backup, or delete the cluster with `coracle delete`",
			path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("%s does not belong to the key beside it: restore both from one backup", path)
	}
	present := newGeneration(cert, key, nil, nil)
	if next != nil && !next.key.Equal(key) {
		if present, err = next.replaces(cert); err != nil {
			return nil, fmt.Errorf("%s: %w", a.path(nextSuffix), err)
		}
	}
	a.present.Store(present)
	return a, nil
}

// checkKey returns an error if the authority has a certificate without its key. The key is written first.
func (a *Authority) checkKey() error {
	_, err := os.Stat(a.path(".key"))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(a.path(".crt")); err == nil {
		return fmt.Errorf("%s is missing, the key of the certificate beside it: restore both from one backup, or the "+
			"cluster with `coracle snapshot restore FILE --replace`", a.path(".key"))
	}
	return nil
}

func (a *Authority) path(suffix string) string { return filepath.Join(a.dir, a.file+suffix) }

func selfSigned(name string, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	template := authorityTemplate(name)
	der, err := sign(template, template, key.Public(), key, authorityFrom, authorityUntil)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func authorityTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
}

func encodeCertificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// Leaf describes a certificate to issue.
type Leaf struct {
	// Name is the common name: the user name in a client certificate.
	Name string
	// Groups are the organizations: the groups in a client certificate.
	Groups []string
	// Hosts are the names and addresses of a serving certificate; empty for a client certificate.
	Hosts []string
	// Addresses are the addresses in a node's client certificate (AddressesExtra).
	Addresses []net.IP
	// Life is its lifetime; 0 means one year.
	Life time.Duration
}

// AddressesExtra names the extra field of a node's user info. Its values are the addresses that its machine has proven:
// the addresses in its client certificate, with which it joined, and its source address.
const AddressesExtra = "coracle.dev/addresses"

// Sign signs a certificate for a public key. It returns PEM: the certificate and, during a replacement, the new
// authority's certificate signed by the old key.
func (a *Authority) Sign(leaf Leaf, public crypto.PublicKey) ([]byte, error) {
	return a.present.Load().sign(leaf, public)
}

func (g *generation) sign(leaf Leaf, public crypto.PublicKey) ([]byte, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: leaf.Name, Organization: leaf.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IPAddresses: leaf.Addresses,
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
	life := cmp.Or(leaf.Life, leafLife)
	now := time.Now()
	der, err := sign(template, g.cert, public, g.key, now.Add(-skew), now.Add(life))
	if err != nil {
		return nil, err
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if g.cross != nil {
		chain = append(chain, encodeCertificate(g.cross)...)
	}
	return chain, nil
}

// Issue generates a key and signs its certificate as Sign does. Both are returned as PEM.
func (a *Authority) Issue(leaf Leaf) (cert, key []byte, err error) {
	return a.present.Load().issue(leaf)
}

func (g *generation) issue(leaf Leaf) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert, err = g.sign(leaf, private.Public())
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	return cert, key, err
}

// FollowClientCAs returns a config for a server that verifies client certificates with the pool that pool returns at
// each handshake. pool must return the same pool until it changes. base must not be modified afterwards.
func FollowClientCAs(base *tls.Config, pool func() *x509.CertPool) *tls.Config {
	var current atomic.Pointer[tls.Config]
	outer := base.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := pool()
		c := current.Load()
		if c == nil || c.ClientCAs != now {
			c = base.Clone()
			c.ClientCAs = now
			current.Store(c)
		}
		return c, nil
	}
	return outer
}

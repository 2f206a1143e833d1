package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// The replacement of a CA has two phases, each decided by one file write at its start:
//
//   - Replace writes <file>-next.pem with the new key, its certificate, and a cross certificate for it that the old
//     key signed. From then on the new key signs, and both certificates are trusted. Issued certificates include the
//     cross certificate, so peers that trust either CA accept them and may follow in any order. <file>.key and
//     <file>.crt still belong to the old CA, so an earlier copy of the directory remains a valid backup.
//   - Finish writes the new key to <file>.key, then the certificate, and removes <file>-next.pem. If the process
//     dies in between, the next Load completes it.
const nextSuffix = "-next.pem"

const (
	machineFile    = "machine-id"
	maxMachineFile = 1 << 10
)

type next struct {
	key         *ecdsa.PrivateKey
	cert, cross *x509.Certificate
}

// files makes the file changes of a replacement. Tests interrupt it.
type files interface {
	write(path string, data []byte) error
	remove(path string) error
}

type onDisk struct{}

func (onDisk) write(path string, data []byte) error { return atomicfile.WriteDurably(path, data) }
func (onDisk) remove(path string) error             { return os.Remove(path) }

// Authorities returns all CAs of the cluster.
func (s *Set) Authorities() []*Authority { return []*Authority{s.Server, s.Client, s.Node} }

// Replacing reports whether the authority is between Replace and Finish.
func (a *Authority) Replacing() bool { return a.present.Load().old != nil }

// Certificates returns the authority's current certificate, and the one being replaced or nil.
func (a *Authority) Certificates() (present, old *x509.Certificate) {
	g := a.present.Load()
	return g.cert, g.old
}

// Replace makes the authority sign with a new key, and trust both keys. It does nothing if a replacement is in
// progress. The new key is durable when it returns. The caller must serialize changes of s.
func (s *Set) Replace(a *Authority) error { return s.replace(onDisk{}, a) }

func (s *Set) replace(disk files, a *Authority) error {
	g := a.present.Load()
	if g.old != nil {
		return nil
	}
	// An earlier Finish could not remove the file: complete it first, because this replacement needs the file.
	if left, err := a.loadNext(); err != nil {
		return err
	} else if left != nil && left.key.Equal(g.key) {
		if err := a.settle(disk, left); err != nil {
			return err
		}
	}
	if a == s.Client {
		if err := disk.write(filepath.Join(a.dir, machineFile), []byte(s.Machine+"\n")); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	// The name differs from the old CA's, because some verifiers select CAs by name only.
	name := fmt.Sprintf("coracle-%s@%d", a.Name, time.Now().Unix())
	n := next{key: key}
	if n.cert, err = selfSigned(name, key); err != nil {
		return err
	}
	der, err := sign(authorityTemplate(name), g.cert, key.Public(), g.key, time.Now().Add(-skew), g.cert.NotAfter)
	if err != nil {
		return err
	}
	if n.cross, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	text, err := encodeKey(key)
	if err != nil {
		return err
	}
	text = append(append(text, encodeCertificate(n.cert)...), encodeCertificate(n.cross)...)
	if err := disk.write(a.path(nextSuffix), text); err != nil {
		return err
	}
	present, err := n.replaces(g.cert)
	if err != nil {
		return err
	}
	a.present.Store(present)
	return nil
}

func (n *next) replaces(old *x509.Certificate) (*generation, error) {
	if err := n.cross.CheckSignatureFrom(old); err != nil {
		return nil, fmt.Errorf("the next authority is not signed by the current one (%w): "+
			"restore both from one backup", err)
	}
	return newGeneration(n.cert, n.key, old, n.cross), nil
}

// Finish completes a replacement: certificates signed by the old key are no longer trusted. It does nothing if no
// replacement is in progress.
func (s *Set) Finish(a *Authority) error { return s.finish(onDisk{}, a) }

func (s *Set) finish(disk files, a *Authority) error {
	g := a.present.Load()
	if g.old == nil {
		return nil
	}
	text, err := encodeKey(g.key)
	if err != nil {
		return err
	}
	if err := disk.write(a.path(".key"), text); err != nil {
		return err
	}
	// The replacement is complete now. If settle fails, the next Load repeats it.
	a.present.Store(newGeneration(g.cert, g.key, nil, nil))
	return a.settle(disk, &next{key: g.key, cert: g.cert})
}

func (a *Authority) settle(disk files, n *next) error {
	if err := disk.write(a.path(".crt"), encodeCertificate(n.cert)); err != nil {
		return err
	}
	return disk.remove(a.path(nextSuffix))
}

// loadNext returns nil if no replacement is in progress.
func (a *Authority) loadNext() (*next, error) {
	path := a.path(nextSuffix)
	data, err := bounded.File(path, maxRetiredFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := parseNext(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: restore it from a backup", path, err)
	}
	return n, nil
}

func parseNext(data []byte) (*next, error) {
	var blocks []*pem.Block
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		blocks, data = append(blocks, block), rest
	}
	if len(blocks) != 3 {
		return nil, errors.New("it does not contain a key and two certificates")
	}
	key, err := x509.ParseECPrivateKey(blocks[0].Bytes)
	if err != nil {
		return nil, err
	}
	n := &next{key: key}
	if n.cert, err = x509.ParseCertificate(blocks[1].Bytes); err != nil {
		return nil, err
	}
	if n.cross, err = x509.ParseCertificate(blocks[2].Bytes); err != nil {
		return nil, err
	}
	for _, c := range []*x509.Certificate{n.cert, n.cross} {
		if public, ok := c.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
			return nil, errors.New("its certificates are not for its key")
		}
	}
	return n, nil
}

// Signed reports which of the authority's certificates, the current one or the one it replaces, has signed c.
func (a *Authority) Signed(c *x509.Certificate) (byPresent, byOld bool) {
	g := a.present.Load()
	by := func(parent *x509.Certificate) bool {
		return parent != nil && bytes.Equal(c.AuthorityKeyId, parent.SubjectKeyId) && c.CheckSignatureFrom(parent) == nil
	}
	return by(g.cert), by(g.old)
}

// Version identifies the CAs that another machine trusts and that signed its certificates. It changes with each
// Replace and Finish that concerns other machines.
func (s *Set) Version() string {
	h := sha256.New()
	h.Write(s.Server.Bundle())
	h.Write(s.Client.Bundle())
	h.Write(s.Node.present.Load().cert.Raw)
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

// loadMachine reads the machine's identity, which is written when the client CA is first replaced.
func loadMachine(dir string, client *Authority) (string, error) {
	data, err := bounded.File(filepath.Join(dir, machineFile), maxMachineFile)
	if errors.Is(err, fs.ErrNotExist) {
		return client.Identity()
	}
	if err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(data)), nil
}

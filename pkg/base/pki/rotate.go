package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	accountKeyFile     = "service-account.key"
	retiredAccountFile = "service-account-retired.pem"
	// mostRetired limits the retired keys, and so the cost of verifying a token.
	mostRetired    = 8
	maxRetiredFile = 64 << 10
	untilHeader    = "Until"
)

// RetiredKey is a public key that no longer signs, but verifies tokens until it expires.
type RetiredKey struct {
	Public *ecdsa.PublicKey
	Until  time.Time
}

// RotateServiceAccount generates a new key for service account tokens. Tokens of the current key remain valid for
// overlap; 0 makes them invalid at once. It changes s and the files in dir, which are durable when it returns. The
// caller must not use s concurrently.
func (s *Set) RotateServiceAccount(dir string, overlap time.Duration, now time.Time) error {
	if overlap < 0 {
		return fmt.Errorf("the overlap must not be negative: %s", overlap)
	}
	retired := slices.DeleteFunc(slices.Clone(s.Retired), func(r RetiredKey) bool { return !now.Before(r.Until) })
	switch {
	case overlap == 0:
		retired = nil // with overlap 0, no earlier key is trusted
	case len(retired) >= mostRetired:
		return fmt.Errorf("%d earlier keys still verify tokens: wait until one of them has retired, or rotate with an "+
			"overlap of 0", len(retired))
	default:
		retired = append(retired, RetiredKey{&s.ServiceAccount.PublicKey, now.Add(overlap).UTC().Truncate(time.Second)})
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	text, err := encodeKey(key)
	if err != nil {
		return err
	}
	var list []byte
	for _, r := range retired {
		der, err := x509.MarshalPKIXPublicKey(r.Public)
		if err != nil {
			return err
		}
		list = append(list,
			pem.EncodeToMemory(&pem.Block{
				Type:    "PUBLIC KEY",
				Headers: map[string]string{untilHeader: r.Until.Format(time.RFC3339)},
				Bytes:   der,
			})...)
	}
	// The list first: after an interruption here, the current key is on it but continues to sign.
	if err := atomicfile.WriteDurably(filepath.Join(dir, retiredAccountFile), list); err != nil {
		return err
	}
	if err := atomicfile.WriteDurably(filepath.Join(dir, accountKeyFile), text); err != nil {
		return err
	}
	s.ServiceAccount, s.Retired = key, retired
	return nil
}

func loadRetired(path string) ([]RetiredKey, error) {
	data, err := bounded.File(path, maxRetiredFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []RetiredKey
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return all, nil
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		key, ok := public.(*ecdsa.PublicKey)
		until, err := time.Parse(time.RFC3339, block.Headers[untilHeader])
		if !ok || err != nil {
			return nil, fmt.Errorf("%s is malformed: restore it from a backup, or remove it, which invalidates the tokens of "+
				"earlier keys", path)
		}
		all, data = append(all, RetiredKey{key, until}), rest
	}
}

// Item is a key or certificate on disk.
type Item struct {
	Name, File string
	// Since is when the file was written.
	Since time.Time
	// Until is when it expires; zero for a key that is used until it is rotated.
	Until time.Time
	// Renewal says how the next one is made: RenewedAlone, a command, or empty for one that has no successor.
	Renewal string
}

// RenewedAlone is the Renewal of a certificate that the server or the agent renews long before it expires.
const RenewedAlone = "by itself"

const replacedSuffix = ", being replaced"

// Replaced reports whether the item is a CA that is being replaced.
func (i Item) Replaced() bool { return strings.HasSuffix(i.Name, replacedSuffix) }

const machineCertificate = "machine.crt"

// inspect lists the certificates in a file, or its key. The file need not exist.
func inspect(path, name, renewal string) ([]Item, error) {
	data, err := bounded.File(path, maxRetiredFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var all []Item
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, Item{Name: name, File: path, Since: info.ModTime(), Until: cert.NotAfter, Renewal: renewal})
	}
	if len(all) == 0 {
		all = append(all, Item{Name: name, File: path, Since: info.ModTime(), Renewal: renewal})
	}
	return all, nil
}

const (
	rotateCA      = "coracle certs rotate --ca"
	rotateAccount = "coracle certs rotate --service-account"
)

// items are the files in a directory of keys, with their names and renewals for users.
var items = []struct{ file, name, renewal string }{
	{"server-ca.crt", "authority of the API", rotateCA},
	{"client-ca.crt", "authority of clients", rotateCA},
	{"node-ca.crt", "authority of nodes", rotateCA},
	{accountKeyFile, "service account key", rotateAccount},
	{"cluster-ca.crt", "authority of the API, as joined", "the server's " + rotateCA},
	{"machine.key", "key of this machine", ""},
	{machineCertificate, "certificate of this machine", RenewedAlone},
}

// Inspect lists the keys and certificates in dir, the directory of a server or of a joined machine.
func Inspect(dir string) ([]Item, error) {
	var all []Item
	for _, i := range items {
		found, err := inspect(filepath.Join(dir, i.file), i.name, i.renewal)
		if err != nil {
			return nil, err
		}
		if file, is := strings.CutSuffix(i.file, ".crt"); is && len(found) > 0 {
			next, err := inspect(filepath.Join(dir, file+nextSuffix), i.name, i.renewal)
			if err != nil {
				return nil, err
			}
			switch {
			case len(next) > 0: // the current CA comes before the one it replaces
				found = []Item{next[0], found[0]}
			case i.file == machineCertificate: // only the first certificate is the machine's
				found = found[:1]
			}
			for n := range found[1:] {
				found[n+1].Name += replacedSuffix
				found[n+1].Renewal = ""
			}
		}
		all = append(all, found...)
	}
	retired, err := loadRetired(filepath.Join(dir, retiredAccountFile))
	for _, r := range retired {
		all = append(all, Item{
			Name:  "service account key, retired",
			File:  filepath.Join(dir, retiredAccountFile),
			Until: r.Until,
		})
	}
	return all, err
}

package server

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/keyutil"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// accountKeys are the keys of service account tokens. The data directory's key signs, unless an option names a
// file; it can be rotated at run time.
type accountKeys struct {
	dir    string
	tokens *registry.Tokens
	// given is the key from a file that signs instead of the data directory's, or nil. verifiers are public keys
	// from further files.
	given     crypto.Signer
	verifiers []publicKey

	mu   sync.Mutex
	keys *pki.Set // mu guards its ServiceAccount and Retired
}

// publicKey is implemented by all public keys of the standard library.
type publicKey interface{ Equal(crypto.PublicKey) bool }

func newAccountKeys(c config.Accounts, dir, issuer string, keys *pki.Set) (*accountKeys, error) {
	a := &accountKeys{dir: dir, keys: keys}
	for _, file := range c.AccountKeys {
		text, err := bounded.Configured(file, maxKeyFile)
		if err != nil {
			return nil, fmt.Errorf("service-account-key-file: %w", err)
		}
		found, err := keyutil.ParsePublicKeysPEM(text)
		if err != nil {
			return nil, fmt.Errorf("service-account-key-file %s: %w", file, err)
		}
		for _, key := range found {
			a.verifiers = append(a.verifiers, key.(publicKey))
		}
	}
	var signer crypto.Signer = keys.ServiceAccount
	if file := c.AccountSigningKey; file != "" {
		text, err := bounded.Configured(file, maxKeyFile)
		if err != nil {
			return nil, fmt.Errorf("failed to parse service-account-signing-key-file: %w", err)
		}
		key, err := keyutil.ParsePrivateKeyPEM(text)
		if err != nil {
			return nil, fmt.Errorf("failed to parse service-account-signing-key-file %s: %w", file, err)
		}
		var ok bool
		if signer, ok = key.(crypto.Signer); !ok {
			return nil, fmt.Errorf("service-account-signing-key-file %s: a key of type %T cannot sign", file, key)
		}
		a.given = signer
	}
	var err error
	a.tokens, err = registry.NewTokens(issuer, signer)
	return a, err
}

// public implements apiserver.Config.ServiceAccountKeys. It returns the key that signs and the keys whose tokens
// are still valid.
func (a *accountKeys) public() []any {
	all := a.signing()
	for _, key := range a.verifiers {
		if !slices.ContainsFunc(all, func(known any) bool { return key.Equal(known) }) {
			all = append(all, key)
		}
	}
	return all
}

func (a *accountKeys) signing() []any {
	if a.given != nil {
		return []any{a.given.Public()}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	all, now := []any{a.keys.ServiceAccount.Public()}, time.Now()
	for _, r := range a.keys.Retired {
		if now.Before(r.Until) {
			all = append(all, r.Public)
		}
	}
	return all
}

func (a *accountKeys) rotate(overlap time.Duration) error {
	if a.given != nil {
		return errors.New("--service-account-signing-key-file names the service account key: name another file there, " +
			"the present one with --service-account-key-file, and restart the server")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.keys.RotateServiceAccount(a.dir, overlap, time.Now()); err != nil {
		return err
	}
	return a.tokens.Use(a.keys.ServiceAccount)
}

func (p *process) RotateServiceAccountKey(_ context.Context, overlap time.Duration) error {
	if p.accounts == nil {
		return errors.New("this process runs only a node: run the command on the server")
	}
	if err := p.accounts.rotate(overlap); err != nil {
		return err
	}
	p.log.Info("rotated the service account key", "overlap", overlap)
	return nil
}

// pkiDir returns the directory with the keys of a server or joined machine.
func pkiDir(dataDir string) string { return filepath.Join(dataDir, "pki") }

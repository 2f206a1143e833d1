package server

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/pki"
	"github.com/coracle-dev/coracle/pkg/registry"
)

// accountKeys are the keys of service account tokens, which can be rotated at run time.
type accountKeys struct {
	dir    string
	tokens *registry.Tokens

	mu   sync.Mutex
	keys *pki.Set // ServiceAccount and Retired are guarded by mu
}

func newAccountKeys(dir, issuer string, keys *pki.Set) (*accountKeys, error) {
	tokens, err := registry.NewTokens(issuer, keys.ServiceAccount)
	return &accountKeys{dir: dir, tokens: tokens, keys: keys}, err
}

// public implements apiserver.Config.ServiceAccountKeys: the current key, and those whose tokens are still valid.
func (a *accountKeys) public() []any {
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
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.keys.RotateServiceAccount(a.dir, overlap, time.Now()); err != nil {
		return err
	}
	return a.tokens.Use(a.keys.ServiceAccount)
}

// RotateServiceAccountKey implements control.Backend.
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

// pkiDir returns the directory of the keys of a server or a joined machine.
func pkiDir(dataDir string) string { return filepath.Join(dataDir, "pki") }

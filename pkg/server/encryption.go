package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/cache"
	"github.com/coracle-dev/coracle/pkg/control"
	"github.com/coracle-dev/coracle/pkg/encryption"
	"github.com/coracle-dev/coracle/pkg/store"
)

var _ control.EncryptionBackend = (*process)(nil)

// encryptionFile is the configuration of --secrets-encryption in the data directory. Its directory is watched, so it
// contains nothing else.
const encryptionFile = "encryption/config.yaml"

func (p *process) newEncryption(v *encryption.Values, s *store.Store, c *cache.Cache) (*encryption.Keeper, error) {
	file, managed := p.EncryptionConfig, filepath.Join(p.DataDir, encryptionFile)
	if p.SecretsEncryption {
		file = managed
	}
	return encryption.New(encryption.Config{
		File: file, Managed: p.SecretsEncryption, ManagedFile: managed, Values: v, Store: s, Logger: p.log,
		Unreadable: func() []cache.Unreadable { return c.Unreadable("") },
	})
}

var errNoPlane = errors.New("this process runs only a node: run the command on the server, which stores the objects")

// Encryption implements control.EncryptionBackend.
func (p *process) Encryption(ctx context.Context) (control.Encryption, error) {
	if p.plane == nil {
		return control.Encryption{}, errNoPlane
	}
	s, err := p.plane.encryption.Status(ctx)
	if err != nil {
		return control.Encryption{}, err
	}
	e := control.Encryption{Enabled: s.File != "", File: s.File, Managed: s.Managed, Warnings: p.plane.encryption.Warnings()}
	for _, r := range s.Rules {
		e.Writes = append(e.Writes, control.EncryptionRule{Resource: r.Resource, Provider: r.Label.Provider, Key: r.Label.Key})
	}
	for _, c := range s.Counts {
		e.Stored = append(e.Stored, control.EncryptionCount{
			EncryptionRule: control.EncryptionRule{Resource: c.Resource, Provider: c.Label.Provider, Key: c.Label.Key},
			Objects:        c.Objects, Unreadable: c.Unreadable, Current: c.Current,
		})
	}
	return e, nil
}

// ChangeEncryption implements control.EncryptionBackend.
func (p *process) ChangeEncryption(action string, progress func(string)) error {
	if p.plane == nil {
		return errNoPlane
	}
	p.log.Info("changing the encryption of stored objects", "action", action)
	var err error
	switch action {
	case control.EncryptionRotate:
		err = p.plane.encryption.Rotate(progress)
	case control.EncryptionReencrypt:
		err = p.plane.encryption.Reencrypt(progress)
	case control.EncryptionEnable:
		err = p.plane.encryption.Enable(true, progress)
	case control.EncryptionDisable:
		err = p.plane.encryption.Enable(false, progress)
	default:
		return fmt.Errorf("unknown action %q", action)
	}
	if err != nil {
		p.log.Warn("could not change the encryption of stored objects", "action", action, "error", err)
	}
	return err
}

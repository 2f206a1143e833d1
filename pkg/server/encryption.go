package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/encryption"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

var _ socket.EncryptionBackend = (*process)(nil)

// encryptionFile is the configuration of --secrets-encryption in the data directory. Keep other files out of its
// directory, which is watched.
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

func (p *process) Encryption(ctx context.Context) (socket.Encryption, error) {
	if p.plane == nil {
		return socket.Encryption{}, errNoPlane
	}
	s, err := p.plane.encryption.Status(ctx)
	if err != nil {
		return socket.Encryption{}, err
	}
	e := socket.Encryption{
		Enabled:  s.File != "",
		File:     s.File,
		Managed:  s.Managed,
		Warnings: p.plane.encryption.Warnings(),
	}
	for _, r := range s.Rules {
		e.Writes = append(e.Writes, socket.EncryptionRule{Resource: r.Resource, Provider: r.Label.Provider, Key: r.Label.Key})
	}
	for _, c := range s.Counts {
		e.Stored = append(e.Stored, socket.EncryptionCount{
			EncryptionRule: socket.EncryptionRule{Resource: c.Resource, Provider: c.Label.Provider, Key: c.Label.Key},
			Objects:        c.Objects, Unreadable: c.Unreadable, Current: c.Current,
		})
	}
	return e, nil
}

func (p *process) ChangeEncryption(action string, progress func(string)) error {
	if p.plane == nil {
		return errNoPlane
	}
	p.log.Info("changing the encryption of stored objects", "action", action)
	var err error
	switch action {
	case socket.EncryptionRotate:
		err = p.plane.encryption.Rotate(progress)
	case socket.EncryptionReencrypt:
		err = p.plane.encryption.Reencrypt(progress)
	case socket.EncryptionEnable:
		err = p.plane.encryption.Enable(true, progress)
	case socket.EncryptionDisable:
		err = p.plane.encryption.Enable(false, progress)
	default:
		return fmt.Errorf("unknown action %q", action)
	}
	if err != nil {
		p.log.Warn("could not change the encryption of stored objects", "action", action, "error", err)
	}
	return err
}

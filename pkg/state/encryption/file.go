package encryption

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// read returns the content of a configuration file, and a warning if users other than its owner can read it. It
// follows symlinks, since mounted Secrets use them.
func read(path string) (data []byte, warning string, err error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, "", err
	}
	f, err := bounded.Open(target)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		warning = fmt.Sprintf("%s contains the encryption keys and is readable by others (mode %04o): chmod 600 %s", path,
			mode, path)
	}
	data, err = bounded.All(f, maxFileBytes)
	if err == nil && len(data) == 0 {
		err = errors.New("it is empty")
	}
	return data, warning, err
}

func write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := atomicfile.WriteDurably(path, data); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(dir)) // the directory's own name must be on disk too before the key is used
}

// newKey generates a secretbox key whose name begins with the date.
func newKey(now time.Time) (apiserverv1.Key, error) {
	secret, id := make([]byte, 32), make([]byte, 4)
	if _, err := rand.Read(secret); err != nil {
		return apiserverv1.Key{}, err
	}
	if _, err := rand.Read(id); err != nil {
		return apiserverv1.Key{}, err
	}
	return apiserverv1.Key{
		Name:   now.UTC().Format(time.DateOnly) + "-" + hex.EncodeToString(id),
		Secret: base64.StdEncoding.EncodeToString(secret),
	}, nil
}

// generate returns the configuration of --secrets-encryption with a new key. Unencrypted Secrets remain readable.
func generate(now time.Time) ([]byte, error) {
	key, err := newKey(now)
	if err != nil {
		return nil, err
	}
	c := &apiserverv1.EncryptionConfiguration{Resources: []apiserverv1.ResourceConfiguration{{
		Resources: []string{"secrets"},
		Providers: []apiserverv1.ProviderConfiguration{
			{Secretbox: &apiserverv1.SecretboxConfiguration{Keys: []apiserverv1.Key{key}}},
			{Identity: &apiserverv1.IdentityConfiguration{}},
		},
	}}}
	return encode(c)
}

func encode(c *apiserverv1.EncryptionConfiguration) ([]byte, error) {
	c.APIVersion, c.Kind = apiserverv1.SchemeGroupVersion.String(), "EncryptionConfiguration"
	return yaml.Marshal(c)
}

// ours decodes a configuration of the form that generate returns: one secretbox and at most one identity provider per
// entry.
func ours(data []byte) (*apiserverv1.EncryptionConfiguration, error) {
	var c apiserverv1.EncryptionConfiguration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, err
	}
	for _, entry := range c.Resources {
		boxes, plain := 0, 0
		for _, p := range entry.Providers {
			switch {
			case p.Secretbox != nil:
				boxes++
			case p.Identity != nil:
				plain++
			}
		}
		if boxes != 1 || boxes+plain != len(entry.Providers) || plain > 1 {
			return nil, errors.New("it was changed by hand: its entries do not have one secretbox and one identity provider " +
				"each: change its keys by hand too, and run `coracle secrets-encrypt reencrypt`")
		}
	}
	return &c, nil
}

func boxes(c *apiserverv1.EncryptionConfiguration) (all []*apiserverv1.SecretboxConfiguration) {
	for _, entry := range c.Resources {
		for _, p := range entry.Providers {
			if p.Secretbox != nil {
				all = append(all, p.Secretbox)
			}
		}
	}
	return all
}

func addKey(c *apiserverv1.EncryptionConfiguration, now time.Time) error {
	key, err := newKey(now)
	if err != nil {
		return err
	}
	for _, b := range boxes(c) {
		b.Keys = append([]apiserverv1.Key{key}, b.Keys...)
	}
	return nil
}

func dropKeys(c *apiserverv1.EncryptionConfiguration) {
	for _, b := range boxes(c) {
		b.Keys = b.Keys[:1]
	}
}

// unfinished reports whether there are keys that a completed rotation would have removed.
func unfinished(c *apiserverv1.EncryptionConfiguration) bool {
	return slices.ContainsFunc(boxes(c), func(b *apiserverv1.SecretboxConfiguration) bool { return len(b.Keys) > 1 })
}

// encrypts reports whether new values are encrypted.
func encrypts(c *apiserverv1.EncryptionConfiguration) bool {
	return len(c.Resources) > 0 && c.Resources[0].Providers[0].Identity == nil
}

// setWriting moves the identity provider to the end, so that new values are encrypted, or to the front, so that they
// are not.
func setWriting(c *apiserverv1.EncryptionConfiguration, encrypted bool) {
	for i := range c.Resources {
		var all []apiserverv1.ProviderConfiguration
		for _, p := range c.Resources[i].Providers {
			if p.Identity == nil {
				all = append(all, p)
			}
		}
		identity := apiserverv1.ProviderConfiguration{Identity: &apiserverv1.IdentityConfiguration{}}
		if encrypted {
			c.Resources[i].Providers = append(all, identity)
		} else {
			c.Resources[i].Providers = append([]apiserverv1.ProviderConfiguration{identity}, all...)
		}
	}
}

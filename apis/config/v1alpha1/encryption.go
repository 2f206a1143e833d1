package v1alpha1

import (
	"errors"

	"github.com/spf13/pflag"
)

// Encryption configures the encryption of stored objects. At most one of the options may be set.
type Encryption struct {
	// EncryptionConfig is the absolute path of an EncryptionConfiguration (apiserver.config.k8s.io/v1). Empty means
	// none.
	EncryptionConfig string
	// SecretsEncryption encrypts Secrets with a key generated in the data directory.
	SecretsEncryption bool
}

func (e Encryption) validate() error {
	if e.EncryptionConfig != "" && e.SecretsEncryption {
		return errors.New("encryption-provider-config and secrets-encryption are both given: leave one out")
	}
	return nil
}

func (e *Encryption) options(f *pflag.FlagSet) {
	f.BoolVar(&e.SecretsEncryption, "secrets-encryption", false,
		"encrypt Secrets in the store with a key generated in the data directory, at later starts too; coracle "+
			"secrets-encrypt disable ends it")
	e.providerOption(f)
}

func (e *Encryption) providerOption(f *pflag.FlagSet) {
	f.StringVar(&e.EncryptionConfig, "encryption-provider-config", "",
		"EncryptionConfiguration file: encryption of the store with your own keys; reloaded when it changes")
}

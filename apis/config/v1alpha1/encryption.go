package v1alpha1

import "errors"

// Encryption configures the encryption of stored objects. At most one of the options may be set.
type Encryption struct {
	// EncryptionConfig is the absolute path of an EncryptionConfiguration (apiserver.config.k8s.io/v1); empty for none.
	EncryptionConfig string `mapstructure:"encryption-provider-config"`
	// SecretsEncryption encrypts Secrets with a key generated in the data directory.
	SecretsEncryption bool `mapstructure:"secrets-encryption"`
}

func (e Encryption) validate() error {
	if e.EncryptionConfig != "" && e.SecretsEncryption {
		return errors.New("encryption-provider-config and secrets-encryption are both given: leave one out")
	}
	return nil
}

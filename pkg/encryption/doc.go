// Package encryption encrypts stored objects: upstream's EncryptionConfiguration, the transformers that it names, and the rotation of
// its keys while the server runs.
//
// It may import kind, cache, bounded and the Kubernetes libraries. Its invariant: a key leaves the configuration in use only once
// nothing that is stored, or on its way to the store, needs it. What is stored has upstream's form, the storage key as associated data
// included, so that an upstream kube-apiserver with the same file reads it, and the other way round.
//
// There are two kinds of files. The user's own (--encryption-provider-config) is read, and read again when it changes, but never
// written. The one in the data directory (--secrets-encryption) is written by Rotate and Enable too.
//
// # Decisions
//
// KMS providers are refused: their client would add more to the binary than everything else here.
//
// A changed file is used at once, without upstream's --encryption-provider-config-automatic-reload, but only if everything that is
// stored can be read with it. Otherwise the one before stays in use, and the status says so.
//
// A server does not start over objects whose keys it was not given. Those that cannot be decrypted with the key of the right name
// are served as upstream does: reads of them fail, and lists of their kind, until they are deleted.
package encryption

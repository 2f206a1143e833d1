// Package encryption encrypts stored objects: upstream's EncryptionConfiguration, its transformers, and key rotation at
// run time.
//
// Its invariant: a key is removed from the configuration in use only when nothing stored, or about to be stored, needs
// it. Stored values have upstream's format, including the storage key as associated data, so that an upstream
// kube-apiserver with the same file can read them and vice versa.
//
// There are two kinds of files. The user's own (--encryption-provider-config) is read again when it changes, but never
// written. The one in the data directory (--secrets-encryption) is also written by Rotate and Enable.
//
// # Decisions
//
// KMS plugins (pkg/state/encryption/kms) are waited for before anything that is stored is read, since the cache reads
// all of it once, at the start: a server without its plugin does not start. Later, a plugin that is away stops writes
// after three minutes, as upstream, but no reads of what is in memory.
//
// A changed file is used at once, without upstream's --encryption-provider-config-automatic-reload, but only if it can
// read everything that is stored. Otherwise the previous configuration stays in use, and the status reports it.
//
// A server does not start if the keys of stored objects are missing. As upstream, if a key of the right name cannot
// decrypt an object, reads of it and lists of its kind fail until it is deleted.
package encryption

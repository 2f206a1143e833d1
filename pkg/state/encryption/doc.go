// Package encryption encrypts stored objects: upstream's EncryptionConfiguration and transformers, with key rotation
// at run time. Stored values have upstream's format, including the storage key as associated data. An upstream
// kube-apiserver with the same file can read them, and vice versa.
//
// Invariant: a key is removed from the configuration in use only when no stored value, and none being written, needs
// it.
//
// The user's own file (--encryption-provider-config) is never written; Rotate and Enable write the file in the data
// directory (--secrets-encryption). A changed file is used at once, without upstream's automatic-reload flag, but only
// if it can read all stored values. Otherwise the previous configuration stays in use, and the status reports it.
//
// A server does not start without the keys of stored objects, or without its KMS plugins, because the cache reads all
// values. Later, an unavailable plugin stops writes after three minutes, as upstream, but no reads from memory.
// Upstream validates the file. Its loader (encryptionconfig) costs little, but its transformers hide which key a value
// has, so no key could be removed safely. Transformers here are upstream's, one for each key.
package encryption

package pki

import (
	"crypto/rsa"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
)

// The limits of a certificate and key from outside this cluster. The cost of parsing an RSA key and of each handshake
// grows with the cube of its length: 65,536 bits take half a minute.
const (
	maxForeignBits = 8192
	// maxForeignKey is the maximum size of a private key in DER, in bytes: 8,192 bits take 4,800.
	maxForeignKey = 8 << 10
	// maxForeignChain is the maximum size of a PEM file, in bytes.
	maxForeignChain = 256 << 10
)

// ForeignPair is tls.X509KeyPair for untrusted input, such as tenants' Secrets. It takes at most a few milliseconds.
// Its errors do not quote the key.
func ForeignPair(cert, key []byte) (tls.Certificate, error) {
	if len(cert) > maxForeignChain || len(key) > maxForeignChain {
		return tls.Certificate{}, fmt.Errorf("the certificate or its key has more than %d bytes", maxForeignChain)
	}
	for rest := key; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if len(block.Bytes) > maxForeignKey {
			return tls.Certificate{}, fmt.Errorf("the key is too large: use ECDSA, or RSA with at most %d bits", maxForeignBits)
		}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, errors.New("not a certificate and its key in PEM")
	}
	if public, ok := pair.Leaf.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() > maxForeignBits {
		return tls.Certificate{}, fmt.Errorf("the RSA key has %d bits: use at most %d", public.N.BitLen(), maxForeignBits)
	}
	return pair, nil
}

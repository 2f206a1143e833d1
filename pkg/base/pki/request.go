package pki

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// The validity of certificates for requests, as with upstream's signers.
const (
	requestBackdate = 5 * time.Minute
	requestShort    = 8 * time.Hour
)

// Request is a certificate signing request and how to sign it.
type Request struct {
	*x509.CertificateRequest
	Usage    x509.KeyUsage
	Extended []x509.ExtKeyUsage
	// Life is the lifetime of the certificate, which also ends with the authority's.
	Life time.Duration
}

// SignRequest signs a request for a leaf certificate and returns PEM, as Sign does. It takes the subject and subject
// alternative names from the request, so the caller must have decided that the requester may have them. It drops
// extensions.
func (a *Authority) SignRequest(r Request, now time.Time) ([]byte, error) {
	g := a.present.Load()
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("unable to verify certificate request signature: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	end := g.cert.NotAfter
	if !now.Before(end) {
		return nil, fmt.Errorf("the signer has expired: NotAfter=%v", end)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: r.Subject,
		DNSNames: r.DNSNames, IPAddresses: r.IPAddresses, EmailAddresses: r.EmailAddresses, URIs: r.URIs,
		KeyUsage: r.Usage, ExtKeyUsage: r.Extended, BasicConstraintsValid: true,
		NotBefore: now.Add(-requestBackdate), NotAfter: now.Add(r.Life),
	}
	if r.Life >= requestShort {
		template.NotAfter = template.NotAfter.Add(-requestBackdate)
	}
	if template.NotAfter.After(end) {
		template.NotAfter = end
	}
	der, err := x509.CreateCertificate(rand.Reader, template, g.cert, r.PublicKey, g.key)
	if err != nil {
		return nil, err
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if g.cross != nil {
		chain = append(chain, encodeCertificate(g.cross)...)
	}
	return chain, nil
}

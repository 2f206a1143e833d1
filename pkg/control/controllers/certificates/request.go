package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

func parse(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

const (
	nodeGroup  = "system:nodes"
	nodePrefix = "system:node:"
)

// usagesAre reports whether usages contain a digital signature and other, and at most key encipherment besides.
func usagesAre(usages []certificatesv1.KeyUsage, other certificatesv1.KeyUsage) bool {
	has := func(u certificatesv1.KeyUsage) bool { return slices.Contains(usages, u) }
	known := func(u certificatesv1.KeyUsage) bool {
		return u == certificatesv1.UsageDigitalSignature || u == certificatesv1.UsageKeyEncipherment || u == other
	}
	return has(certificatesv1.UsageDigitalSignature) && has(other) &&
		!slices.ContainsFunc(usages, func(u certificatesv1.KeyUsage) bool { return !known(u) })
}

// kubeletClient returns why a node may not have a client certificate for the request, or nil.
func kubeletClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{nodeGroup}):
		return errors.New("subject organization is not system:nodes")
	case len(r.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's message
	case len(r.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !strings.HasPrefix(r.Subject.CommonName, nodePrefix):
		return errors.New("subject common name does not begin with system:node:")
	case !usagesAre(usages, certificatesv1.UsageClientAuth):
		return errors.New("usages did not match [client auth digital signature key encipherment]")
	}
	return nil
}

// kubeletServing returns why a node may not have a serving certificate for the request, or nil.
func kubeletServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{nodeGroup}):
		return errors.New("subject organization is not system:nodes")
	case len(r.DNSNames)+len(r.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's message
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !usagesAre(usages, certificatesv1.UsageServerAuth):
		return errors.New("usages did not match [digital signature key encipherment server auth]")
	case !strings.HasPrefix(r.Subject.CommonName, nodePrefix):
		return errors.New("subject common name does not begin with system:node:")
	}
	return nil
}

// apiClient returns why an API client may not have a certificate for the request, or nil. The approver judges the
// subject, and admission rejects system:masters.
func apiClient(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	client := false
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
		case certificatesv1.UsageClientAuth:
			client = true
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !client {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

// rules check requests for the built-in signers. kubernetes.io/legacy-unknown is missing because v1 rejects
// requests for it.
var rules = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeAPIServerClientSignerName:        apiClient,
	certificatesv1.KubeAPIServerClientKubeletSignerName: kubeletClient,
	certificatesv1.KubeletServingSignerName:             kubeletServing,
}

// usage converts usages that passed the rules to X.509.
func usage(usages []certificatesv1.KeyUsage) (key x509.KeyUsage, extended []x509.ExtKeyUsage) {
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature:
			key |= x509.KeyUsageDigitalSignature
		case certificatesv1.UsageKeyEncipherment:
			key |= x509.KeyUsageKeyEncipherment
		case certificatesv1.UsageClientAuth:
			extended = append(extended, x509.ExtKeyUsageClientAuth)
		case certificatesv1.UsageServerAuth:
			extended = append(extended, x509.ExtKeyUsageServerAuth)
		}
	}
	return key, extended
}

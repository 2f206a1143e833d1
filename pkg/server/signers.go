package server

import (
	"crypto/x509"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/control/controllers/certificates"
)

// signers returns upstream's built-in signers. They sign with the cluster's current CAs.
func signers(keys *pki.Set) map[string]certificates.Signer {
	by := func(a *pki.Authority) certificates.Signer {
		return func(r *x509.CertificateRequest, usage x509.KeyUsage, extended []x509.ExtKeyUsage,
			life time.Duration) ([]byte, error) {
			return a.SignRequest(pki.Request{CertificateRequest: r, Usage: usage, Extended: extended, Life: life}, time.Now())
		}
	}
	return map[string]certificates.Signer{
		certificatesv1.KubeAPIServerClientSignerName:        by(keys.Client),
		certificatesv1.KubeAPIServerClientKubeletSignerName: by(keys.Client),
		certificatesv1.KubeletServingSignerName:             by(keys.Node),
	}
}

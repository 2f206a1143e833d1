package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// explain maps an error to the reason of a Cluster's condition and a message with the remedy.
func explain(err error, server string) (reason, message string) {
	reason, message = kontrol.ReasonUnreachable, "the server does not answer: check that it runs and can "+
		"be reached from here"
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var alert tls.AlertError
	var netErr net.Error
	var syntax *json.SyntaxError
	switch absent := (*pull.NotConnectedError)(nil); {
	case errors.As(err, &absent):
		return reason, absent.Error()
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		reason, message = kontrol.ReasonCertificateInvalid, "the server's certificate has expired: renew it there"
	case errors.As(err, &unknown):
		reason, message = kontrol.ReasonCertificateInvalid, "the server's certificate is not signed by the authority in the "+
			"kubeconfig: update certificate-authority-data"
	case errors.As(err, &invalid), errors.As(err, &hostname):
		reason, message = kontrol.ReasonCertificateInvalid, "the server's certificate is not for this address"
	case errors.As(err, &alert):
		reason, message = kontrol.ReasonCertificateInvalid, "the server refuses the kubeconfig's client certificate: renew it"
	case apierrors.IsUnauthorized(err):
		reason, message = kontrol.ReasonUnauthorized, "the server does not accept the kubeconfig's credentials: renew them"
	case apierrors.IsForbidden(err):
		reason, message = kontrol.ReasonUnauthorized, "the kubeconfig's user lacks a permission: grant it"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
	case errors.As(err, new(*bounded.TooLargeError)), errors.Is(err, bounded.ErrNotJSON), errors.As(err, &syntax),
		errors.Is(err, errNoVersion),
		apierrors.IsNotFound(err), strings.Contains(err.Error(), "invalid character"),
		strings.Contains(err.Error(), "malformed HTTP"), strings.Contains(err.Error(), "couldn't get version"):
		reason, message = kontrol.ReasonInvalidAnswer, "the server is not a Kubernetes API server: check the address"
	}
	return reason, bounded.Text(fmt.Sprintf("%s: %s (%v)", server, message, err), kontrol.MaxError)
}

// Lost reports whether an error may mean that the whole cluster is unusable, rather than that it refuses one request.
func Lost(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return apierrors.IsUnauthorized(err) || apierrors.IsServiceUnavailable(err) && status.Status().Details == nil
	}
	var netErr net.Error
	var tlsErr *tls.CertificateVerificationError
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) || errors.As(err, &tlsErr) ||
		errors.As(err, new(*bounded.TooLargeError)) ||
		strings.Contains(err.Error(), "EOF") || strings.Contains(err.Error(), "connection "+
		"reset") || strings.Contains(err.Error(), "connection refused")
}

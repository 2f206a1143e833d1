package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of services whose backends use TLS.
const (
	// annotationBackendCA names the Secret, in the service's namespace, whose key ca.crt contains the certificate
	// authorities of the backends in PEM.
	annotationBackendCA = "ingress.coracle.dev/backend-ca"
	// annotationBackendName is the name in the backends' certificates; the default is SERVICE.NAMESPACE.svc.
	annotationBackendName = "ingress.coracle.dev/backend-name"
)

func isSecure(protocol string) bool {
	switch strings.ToLower(protocol) {
	case "https", "kubernetes.io/wss":
		return true
	}
	return false
}

// secured contains the transports to backends with one certificate authority and server name.
type secured struct {
	version string
	// upgrading is for requests that leave HTTP, such as WebSockets, which need HTTP/1.1. plain is for all others
	// and may use HTTP/2, as gRPC requires.
	plain, upgrading *http.Transport
}

func (s *secured) close() {
	s.plain.CloseIdleConnections()
	s.upgrading.CloseIdleConnections()
}

func (s *secured) via(r *http.Request) *http.Transport {
	if r.Header.Get("Upgrade") != "" {
		return s.upgrading
	}
	return s.plain
}

// secure returns the transports to a service's backends. While nothing changes it returns the same ones, which keep
// their connections. It also returns the name of the Secret, even if the Secret is unusable, because the table
// depends on it.
func (i *Ingress) secure(ctx context.Context, s *corev1.Service) (*secured, types.NamespacedName, error) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Annotations[annotationBackendCA]}
	if name.Name == "" {
		return nil, types.NamespacedName{}, fmt.Errorf("the backends have TLS (appProtocol): name a Secret with their "+
			"authorities (ca.crt) in the service's annotation %s", annotationBackendCA)
	}
	var secret corev1.Secret
	if err := i.Client.Cache().Get(ctx, name, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("there is no Secret %s, which the service's annotation %s names", name.Name, annotationBackendCA)
		}
		return nil, name, err
	}
	server := cmp.Or(s.Annotations[annotationBackendName], s.Name+"."+s.Namespace+".svc")
	key := name.String() + " " + server
	version := string(secret.UID) + " " + secret.ResourceVersion
	if have := i.nextSecured[key]; have != nil {
		return have, name, nil
	}
	if have := i.secured[key]; have != nil && have.version == version {
		i.nextSecured[key] = have
		return have, name, nil
	}
	made, err := i.handler.secured(secret.Data["ca.crt"], server)
	if err != nil {
		return nil, name, fmt.Errorf("Secret %s: %w", name.Name, err)
	}
	made.version = version
	i.nextSecured[key] = made
	return made, name, nil
}

// keepSecured closes the transports that only the previous table used.
func (i *Ingress) keepSecured() {
	for key, s := range i.secured {
		if i.nextSecured[key] != s {
			s.close()
		}
	}
	i.secured, i.nextSecured = i.nextSecured, map[string]*secured{}
}

// secured returns transports that trust the authorities, which are in PEM.
func (h *handler) secured(authorities []byte, server string) (*secured, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, errors.New("it has no certificates in PEM format under ca.crt")
	}
	transport := func(http2 bool) *http.Transport {
		t := h.transport.Clone()
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: server}
		t.TLSHandshakeTimeout = connectTimeout
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(http2)
		return t
	}
	return &secured{plain: transport(true), upgrading: transport(false)}, nil
}

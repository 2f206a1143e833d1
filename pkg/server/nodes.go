package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// apiServerUser is the API server's user name in requests to nodes.
const apiServerUser = "coracle:apiserver"

// nodes connects to a node's own API at the address and port in its Node's status. The node's certificate must have
// the node's name.
type nodes struct {
	client client.Interface
	// roots returns the CAs of the nodes' serving certificates. It must return the same pool until they change. as
	// returns the API server's client certificate.
	roots func() *x509.CertPool
	as    func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

	mu         sync.Mutex
	trusted    *x509.CertPool             // the roots of the transports
	transports map[string]*http.Transport // by node name
}

// mostTransports is the maximum number of cached transports. At that number the cache is cleared.
const mostTransports = 4096

// idleConnections is the number of idle connections kept per node, so that a burst of messages does not open a
// connection for each.
const idleConnections = 64

// Connect implements apiserver.NodeClient.
func (n *nodes) Connect(ctx context.Context, name string) (*url.URL, http.RoundTripper, error) {
	var node corev1.Node
	if err := n.client.Get(ctx, ctrl.ObjectKey{Name: name}, &node); err != nil {
		return nil, nil, err
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			port := strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
			return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, port)}, n.transport(name), nil
		}
	}
	return nil, nil, apierrors.NewServiceUnavailable("node " + name + " has not reported its address yet")
}

func (n *nodes) transport(name string) *http.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if roots := n.roots(); roots != n.trusted {
		for _, t := range n.transports {
			t.CloseIdleConnections()
		}
		n.trusted, n.transports = roots, nil
	}
	if t := n.transports[name]; t != nil {
		return t
	}
	if n.transports == nil || len(n.transports) >= mostTransports {
		n.transports = map[string]*http.Transport{}
	}
	t := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: n.trusted, GetClientCertificate: n.as, ServerName: name},
		DialContext:     (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: idleConnections,
	}
	n.transports[name] = t
	return t
}

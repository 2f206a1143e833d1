package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// apiServerUser is who the API server is to the nodes.
const apiServerUser = "coracle:apiserver"

// nodes tells the API server how to reach a node's own API: at the address and port that the node reports.
type nodes struct {
	client    client.Interface
	transport *http.Transport
}

// Connect implements apiserver.NodeClient.
func (n *nodes) Connect(ctx context.Context, name string) (*url.URL, http.RoundTripper, error) {
	var node corev1.Node
	if err := n.client.Get(ctx, ctrl.ObjectKey{Name: name}, &node); err != nil {
		return nil, nil, err
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			port := strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
			return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, port)}, n.transport, nil
		}
	}
	return nil, nil, apierrors.NewServiceUnavailable("node " + name + " has not told its address yet")
}

func nodeTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		TLSClientConfig: config,
		DialContext:     (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		IdleConnTimeout: 90 * time.Second,
	}
}

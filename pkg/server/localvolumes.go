package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// removalTime is the timeout of one request about a volume. A repeated removal continues where the previous one
	// ended.
	removalTime = time.Minute
	// maxNodeError is the maximum length of a node's error, in bytes.
	maxNodeError = 4 << 10
)

func (n *nodes) removeVolume(ctx context.Context, node *corev1.Node, volume string) error {
	return n.askVolume(ctx, node, http.MethodDelete, "remove", "localVolumes", volume)
}

// resizeVolume asks a node to enforce a new size of a local volume, in bytes.
func (n *nodes) resizeVolume(ctx context.Context, node *corev1.Node, volume string, size int64) error {
	return n.askVolume(ctx, node, http.MethodPut, "resize", "localVolumes", volume, "size", strconv.FormatInt(size, 10))
}

func (n *nodes) askVolume(ctx context.Context, node *corev1.Node, method, verb string, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, removalTime)
	defer cancel()
	res, err := n.ask(ctx, node, method, verb, path...)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent {
		return nil
	}
	return nodeRefusal(node, verb, res)
}

func (n *nodes) ask(ctx context.Context, node *corev1.Node, method, verb string,
	path ...string) (*http.Response, error) {
	base, transport, err := n.Connect(ctx, node.Name)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, base.JoinPath(path...).String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("could not reach node %q to %s the volume: %w", node.Name, verb, err)
	}
	return res, nil
}

func nodeRefusal(node *corev1.Node, verb string, res *http.Response) error {
	text, err := bounded.All(res.Body, maxNodeError)
	if err != nil {
		text = []byte(res.Status)
	}
	return fmt.Errorf("node %q could not %s the volume: %s", node.Name, verb,
		bounded.Text(strings.TrimSpace(string(text)), maxNodeError))
}

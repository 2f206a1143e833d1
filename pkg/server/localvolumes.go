package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/bounded"
)

const (
	// removalTime limits one attempt to remove a volume's directory. The next one goes on where it ended.
	removalTime = time.Minute
	// maxNodeError limits what is read of a node's error, in bytes.
	maxNodeError = 4 << 10
)

// removeVolume asks a node to remove the directory of a volume that was provisioned there.
func (n *nodes) removeVolume(ctx context.Context, node *corev1.Node, volume string) error {
	ctx, cancel := context.WithTimeout(ctx, removalTime)
	defer cancel()
	base, transport, err := n.Connect(ctx, node.Name)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, base.JoinPath("localVolumes", volume).String(), nil)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("could not reach node %q to remove the volume: %w", node.Name, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent {
		return nil
	}
	text, err := bounded.All(res.Body, maxNodeError)
	if err != nil {
		text = []byte(res.Status)
	}
	return fmt.Errorf("node %q could not remove the volume: %s", node.Name, strings.TrimSpace(string(text)))
}

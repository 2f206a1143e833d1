package server

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
)

// forgetTask asks a node's agent to remove the logs of a deleted task.
func (n *nodes) forgetTask(ctx context.Context, name string, task types.UID) error {
	base, transport, err := n.Connect(ctx, name)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, base.JoinPath("taskLogs", string(task)).String(), nil)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("node %s: %s", name, res.Status)
	}
	return nil
}

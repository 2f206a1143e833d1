package task

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

const forgetPatience = 10 * time.Second

// logsOf returns requests to remove the logs of a deleted task from the nodes of its attempts.
func logsOf(o client.Object) []engine.Request {
	t, ok := o.(*tasks.Task)
	if !ok {
		return nil
	}
	var nodes []string
	if t.Status.Array != nil {
		nodes = slices.Concat(t.Status.Array.Nodes, t.Status.Array.Targets)
	}
	for _, a := range t.Status.Attempts {
		nodes = append(nodes, a.Node)
	}
	seen := map[string]bool{"": true}
	var out []engine.Request
	for _, node := range nodes {
		if !seen[node] {
			seen[node] = true
			out = append(out, engine.RequestFor(t.Namespace, logs+string(t.UID)+"/"+node))
		}
	}
	return out
}

// forgetLogs asks a node once to remove a task's logs. An unreachable node keeps them until its bounds are exceeded,
// but clients cannot read them, since the API finds logs through the task.
func (r *reconciler) forgetLogs(ctx context.Context, namespace, at string) error {
	task, node, ok := strings.Cut(at, "/")
	if !ok || r.forget == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	if err := r.forget(ctx, node, namespace, types.UID(task)); err != nil {
		r.Log.Debug("could not remove the logs of a deleted task", "node", node, "task", task, "error", err)
	}
	return nil
}

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// LogOptions are the options of `coracle logs`.
type LogOptions struct {
	Follow bool
	// Tail is the number of lines from the end; negative means all.
	Tail int64
	// Attempt is the number of the attempt, 0 for the last one that has begun. Index is the index in an array,
	// negative if the task is not an array.
	Attempt, Index int32
	// Container is the name of an init container or sidecar, "" for the main container.
	Container string
}

// Logs copies the output of a task's attempt to out. The attempt's node keeps the output until the task is deleted.
func (c cluster) Logs(ctx context.Context, name string, o LogOptions, out io.Writer) error {
	t, err := c.getTask(ctx, name)
	if errors.Is(err, errNoTask) {
		return fmt.Errorf("%w; the output of a pod is in `coracle ctl logs -n %[2]s %[3]s`, of a worker in `coracle ctl "+
			"logs -n %[2]s -l %[4]s=%[3]s`", err, c.Namespace, name, workers.LabelWorker)
	}
	if err != nil {
		return err
	}
	if err := validIndex(t, o.Index); err != nil {
		return err
	}
	return c.copyLogs(ctx, name, o, out)
}

func validIndex(t *tasks.Task, index int32) error {
	switch size := t.Size(); {
	case t.Spec.Array == nil && index > 0:
		return fmt.Errorf("task %s is not an array: leave out --index", t.Name)
	case size == 0:
		return fmt.Errorf("task %s has not started: %s", t.Name, t.Status.Error)
	case t.Spec.Array != nil && size > 1 && index < 0:
		return fmt.Errorf("task %s is an array: choose one of its outputs with --index 0 to %d", t.Name, size-1)
	case t.Spec.Array != nil && index >= size:
		return fmt.Errorf("task %s has no index %d: choose 0 to %d", t.Name, index, size-1)
	}
	return nil
}

func (c cluster) copyLogs(ctx context.Context, name string, o LogOptions, out io.Writer) error {
	req, err := c.subresource(name, "log", o)
	if err != nil {
		return err
	}
	if o.Follow {
		req = req.Param("follow", "true")
	}
	if o.Tail >= 0 {
		req = req.Param("tailLines", strconv.FormatInt(o.Tail, 10))
	}
	if o.Container != "" {
		req = req.Param("container", o.Container)
	}
	stream, err := req.Stream(ctx)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, stream)
	return errors.Join(err, stream.Close())
}

// subresource returns a request for what is kept of an attempt.
func (c cluster) subresource(name, subresource string, o LogOptions) (*rest.Request, error) {
	set, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return nil, err
	}
	gv := tasks.GroupVersion
	req := set.CoreV1().RESTClient().Get().AbsPath("apis", gv.Group, gv.Version, "namespaces", c.Namespace, "tasks", name,
		subresource)
	if o.Attempt > 0 {
		req = req.Param("attempt", strconv.Itoa(int(o.Attempt)))
	}
	if o.Index >= 0 {
		req = req.Param("index", strconv.Itoa(int(o.Index)))
	}
	return req, nil
}

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"k8s.io/client-go/kubernetes"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// LogOptions are the options of `coracle logs`.
type LogOptions struct {
	Follow bool
	// Tail is the number of lines from the end; negative means all.
	Tail int64
	// Attempt is the number of the attempt, 0 for the last one that has begun. Index is the index in an array,
	// negative if the task is not an array.
	Attempt, Index int32
}

// Logs copies the output of a task's attempt to out. The attempt's node keeps the output until the task is deleted.
func (c cluster) Logs(ctx context.Context, name string, o LogOptions, out io.Writer) error {
	t, err := c.getTask(ctx, name)
	if err != nil {
		return err
	}
	if a := t.Spec.Array; a != nil && a.Size > 1 && o.Index < 0 {
		return fmt.Errorf("task %s is an array: choose one of its outputs with --index 0 to %d", name, a.Size-1)
	} else if a != nil && o.Index >= a.Size {
		return fmt.Errorf("task %s has no index %d: choose 0 to %d", name, o.Index, a.Size-1)
	} else if a == nil && o.Index > 0 {
		return fmt.Errorf("task %s is not an array: leave out --index", name)
	}
	return c.copyLogs(ctx, name, o, out)
}

func (c cluster) copyLogs(ctx context.Context, name string, o LogOptions, out io.Writer) error {
	set, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return err
	}
	gv := tasks.GroupVersion
	req := set.CoreV1().RESTClient().Get().AbsPath("apis", gv.Group, gv.Version, "namespaces", c.Namespace, "tasks", name,
		"log")
	if o.Follow {
		req = req.Param("follow", "true")
	}
	if o.Tail >= 0 {
		req = req.Param("tailLines", strconv.FormatInt(o.Tail, 10))
	}
	if o.Attempt > 0 {
		req = req.Param("attempt", strconv.Itoa(int(o.Attempt)))
	}
	if o.Index >= 0 {
		req = req.Param("index", strconv.Itoa(int(o.Index)))
	}
	stream, err := req.Stream(ctx)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, stream)
	return errors.Join(err, stream.Close())
}

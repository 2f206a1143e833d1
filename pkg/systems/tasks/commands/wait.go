package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// serverPatience is how long a wait survives while the server cannot be reached; the task continues. serverPause is
// the time between attempts to reach the server.
const (
	serverPatience = time.Minute
	serverPause    = 200 * time.Millisecond
)

// away reports whether a request failed because the server is down, restarting or not ready yet.
func away(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		apierrors.IsServiceUnavailable(err)
}

// watch watches one task, beginning with its current state.
func (c cluster) watch(ctx context.Context, task *tasks.Task) (watch.Interface, error) {
	return c.Client.Watch(ctx, &tasks.TaskList{}, &ctrl.ListOptions{
		Namespace: task.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", task.Name),
	})
}

func errDeleted(task *tasks.Task) error {
	return fmt.Errorf("task %s was deleted before it ended", task.Name)
}

// follow watches a task until it ends. Meanwhile it reports the progress and copies the output of the attempts.
func (c cluster) follow(ctx context.Context, task *tasks.Task, t command.Terminal) (*tasks.Task, error) {
	f := &follower{c: c, t: t, out: closed(), tenth: -2}
	defer f.stop()
	var since time.Time // when the server became unreachable; zero while it is reachable
	for {
		w, err := c.watch(ctx, task)
		if err != nil && away(err) && (since.IsZero() || time.Since(since) < serverPatience) {
			if since.IsZero() {
				since = time.Now()
				fmt.Fprintf(t.Err, "the server cannot be reached; task %s continues: %v\n", task.Name, err)
			}
			select {
			case <-time.After(serverPause):
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if err != nil {
			return nil, err
		}
		since = time.Time{}
		for event := range w.ResultChan() {
			now, ok := event.Object.(*tasks.Task)
			if !ok {
				continue
			}
			if now.UID != task.UID || event.Type == watch.Deleted {
				w.Stop()
				return nil, errDeleted(task)
			}
			f.show(ctx, now)
			if now.Status.Phase.Ended() {
				w.Stop()
				f.finish(ctx)
				t.Progress("")
				if now.Status.Phase == tasks.TaskCompleted { // the command returns a failure as its error
					fmt.Fprintln(t.Err, describePhase(now))
				}
				return now, nil
			}
		}
		// The server ends each watch after a while. Start again with the current state.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

type follower struct {
	c      cluster
	t      command.Terminal
	last   string
	tenth  int32         // of an array's indexes, that was printed last
	warned bool          // the line that was printed last has an error
	logged int32         // the number of the last attempt whose output is copied
	out    chan struct{} // closed when the output of that attempt has been copied
	pull   context.CancelFunc
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (f *follower) stop() {
	if f.pull != nil {
		f.pull()
		f.pull = nil
	}
}

// show prints a changed state, and starts to copy the output of a new attempt.
func (f *follower) show(ctx context.Context, t *tasks.Task) {
	if !t.Status.Phase.Ended() {
		if line := describePhase(t); line != f.last {
			f.last = line
			switch {
			case t.Spec.Array != nil:
				f.progress(t, line)
			case t.Status.Phase != tasks.TaskRunning || f.logged == 0:
				fmt.Fprintln(f.t.Err, line)
			}
		}
	}
	if t.Status.Phase == tasks.TaskScheduled && t.Spec.Array == nil && t.Status.PodName != "" && f.pull == nil {
		var pulling context.Context
		pulling, f.pull = context.WithCancel(ctx)
		go f.c.pulls(pulling, t.Namespace, t.Status.PodName, f.t.Err)
	}
	if t.Status.Phase != tasks.TaskScheduled {
		f.stop()
	}
	if t.Spec.Array != nil {
		return
	}
	for _, a := range t.Status.Attempts {
		if a.Number <= f.logged || a.StartedAt == nil || a.Node == "" {
			continue
		}
		before, done := f.out, make(chan struct{})
		f.logged, f.out = a.Number, done
		go func() {
			defer close(done)
			<-before
			err := resume(ctx, f.t.Out, func(out io.Writer) error {
				return f.c.copyLogs(ctx, t.Name, LogOptions{Follow: true, Tail: -1, Attempt: a.Number, Index: -1}, out)
			})
			if err != nil && ctx.Err() == nil {
				fmt.Fprintf(f.t.Err, "the output of attempt %d cannot be shown: %v\n", a.Number, err)
			}
		}()
	}
}

// progress prints the state of an array: on a terminal as a line that the next one overwrites, elsewhere as a line for
// each tenth of the indexes, and for the first error.
func (f *follower) progress(t *tasks.Task, line string) {
	tenth := int32(-1)
	if a := t.Status.Array; a != nil {
		tenth = (a.Completed + a.Failed) * 10 / max(t.Spec.Array.Size, 1)
	}
	switch {
	case f.t.Live():
		f.t.Progress(line)
	case tenth != f.tenth, t.Status.Error != "" && !f.warned:
		f.tenth, f.warned = tenth, t.Status.Error != ""
		fmt.Fprintln(f.t.Err, line)
	}
}

// resume calls read again while the server is away. Each read begins at the start; output that was written is skipped.
func resume(ctx context.Context, to io.Writer, read func(io.Writer) error) error {
	out, broke := &remainder{to: to}, false
	for since := time.Now(); ; {
		had := out.had
		out.skip = had
		err := read(out)
		if err == nil || !broke && !away(err) { // after an interruption any error may pass
			return err
		}
		if broke = true; out.had > had {
			since = time.Now()
		} else if time.Since(since) > serverPatience {
			return err
		}
		select {
		case <-time.After(serverPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remainder drops the first skip bytes, writes the rest to a writer, and counts the written bytes in had.
type remainder struct {
	to        io.Writer
	skip, had int64
}

func (r *remainder) Write(p []byte) (int, error) {
	known := min(r.skip, int64(len(p)))
	r.skip -= known
	n, err := r.to.Write(p[known:])
	r.had += int64(n)
	return int(known) + n, err
}

// outputPatience bounds the wait for the rest of the output of a task that has ended.
const outputPatience = 30 * time.Second

func (f *follower) finish(ctx context.Context) {
	select {
	case <-f.out:
	case <-ctx.Done():
	case <-time.After(outputPatience):
	}
}

// pulls prints the progress of image pulls, which the node reports as events of the pod.
func (c cluster) pulls(ctx context.Context, namespace, pod string, out io.Writer) {
	w, err := c.Client.Watch(ctx, &corev1.EventList{},
		&ctrl.ListOptions{Namespace: namespace, FieldSelector: fields.OneTermEqualSelector("involvedObject.name", pod)})
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if e, ok := event.Object.(*corev1.Event); ok &&
				(e.Reason == "Pulling" || e.Reason == "Pulled" && strings.HasPrefix(e.Message, "Successfully")) {
				fmt.Fprintln(out, strings.ToLower(e.Message[:1])+e.Message[1:])
			}
		}
	}
}

func describePhase(t *tasks.Task) string {
	s := t.Status
	if a := s.Array; a != nil && !s.Phase.Ended() {
		line := fmt.Sprintf("%d of %d completed, %d failed, %d running", a.Completed, t.Size(), a.Failed, a.Running)
		if n := starting(s.Attempts); n > 0 { // short programs may end before they are seen running
			line += fmt.Sprintf(", %d starting", n)
		}
		if s.Error != "" {
			line += "; " + s.Error
		}
		return line
	}
	switch s.Phase {
	case tasks.TaskScheduled, tasks.TaskRunning:
		line := fmt.Sprintf("%s on %s", strings.ToLower(string(s.Phase)), s.Node)
		if s.Error != "" {
			line += ": " + s.Error
		}
		return line
	case tasks.TaskCompleted:
		if d := took(s); d >= time.Second { // the API's times are in whole seconds
			return "completed in " + d.String()
		}
		return "completed"
	}
	line := strings.ToLower(tasks.Outcome(s.Phase, s.Reason))
	if s.Error != "" && s.Reason != tasks.ReasonCancelled {
		line += ": " + s.Error
	}
	return line
}

// starting returns the number of attempts that have a node and no running container yet.
func starting(attempts []tasks.TaskAttempt) (n int) {
	for i := range attempts {
		if attempts[i].Phase == tasks.TaskScheduled {
			n++
		}
	}
	return n
}

func took(s tasks.TaskStatus) time.Duration {
	if s.StartedAt == nil || s.FinishedAt == nil {
		return 0
	}
	return s.FinishedAt.Sub(s.StartedAt.Time)
}

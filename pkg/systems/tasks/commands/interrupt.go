package commands

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// interrupted ends a wait. If t is a terminal, it asks whether to cancel the task; it returns the task if that ends
// before the answer.
func (c cluster) interrupted(task *tasks.Task, t command.Terminal) (*tasks.Task, error) {
	left := &command.Exit{Code: interruptedCode, Err: fmt.Errorf("interrupted; task %[1]s continues: see `coracle logs "+
		"-f %[1]s` and `coracle cancel %[1]s`", task.Name)}
	if !t.Interactive() {
		return nil, left
	}
	yes, ended, err := c.askToCancel(task, t)
	if err != nil || ended != nil {
		return ended, err
	}
	if !yes {
		return nil, left
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := c.Cancel(ctx, []string{task.Name}, func(format string, args ...any) {
		fmt.Fprintf(t.Err, format, args...)
	}); err != nil {
		return nil, err
	}
	return nil, cancelled(task.Name, interruptedCode)
}

// askToCancel asks whether to cancel a task. Another interrupt means no. If the task ends before the answer, it returns
// the task; if the task was deleted, an error.
func (c cluster) askToCancel(task *tasks.Task, t command.Terminal) (yes bool, ended *tasks.Task, err error) {
	fmt.Fprintf(t.Err, "\nCancel task %s? [y/N] ", task.Name)
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt)
	defer signal.Stop(again)
	answer := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(t.In, 100)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ends := make(chan *tasks.Task, 1)
	go func() { c.waitForEnd(ctx, task, ends) }()
	select {
	case a := <-answer:
		return a == "y" || a == "yes", nil, nil
	case <-again:
		fmt.Fprintln(t.Err)
		return false, nil, nil
	case ended := <-ends:
		if ended == nil {
			fmt.Fprintln(t.Err)
			return false, nil, errDeleted(task)
		}
		fmt.Fprintf(t.Err, "\nIt has ended meanwhile: %s\n", describePhase(ended))
		return false, ended, nil
	}
}

// waitForEnd sends the task once it has ended, or nil once it was deleted. It sends nothing if the server ends the
// watch before, or cannot be reached.
func (c cluster) waitForEnd(ctx context.Context, task *tasks.Task, ends chan<- *tasks.Task) {
	w, err := c.watch(ctx, task)
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case event, open := <-w.ResultChan():
			now, ok := event.Object.(*tasks.Task)
			switch {
			case !open:
				return
			case !ok:
			case now.UID != task.UID || event.Type == watch.Deleted:
				ends <- nil
				return
			case now.Status.Phase.Ended():
				ends <- now
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// deleted is a value that a wait accepts in addition to the states.
const deleted = "Deleted"

// WaitResources waits until all selected Resources reach a state, or are deleted. The result is an Exit: 1 after
// the timeout.
func (c *cluster) WaitResources(ctx context.Context, o KontrolOptions, state string, timeout time.Duration,
	t command.Terminal) error {
	if state != deleted {
		var err error
		if state, err = parseState(state); err != nil {
			return answered(false, err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := c.matching(limited, &o)
	if err == nil && len(list) == 0 {
		err = errors.New("there is no resource to wait for")
	}
	for i := range list {
		if err != nil {
			break
		}
		err = c.waitResource(limited, &list[i], state, t)
	}
	if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return answered(false, nil)
	}
	return answered(true, err)
}

// waitResource waits for one Resource, and prints its final state.
func (c *cluster) waitResource(ctx context.Context, r *kontrol.Resource, state string, t command.Terminal) error {
	last := r
	// done reports whether the wait is over.
	done := func(now *kontrol.Resource) (bool, error) {
		if now == nil || now.UID != r.UID {
			if state == deleted {
				fmt.Fprintf(t.Out, "resource %s is deleted\n", r.Name)
				return true, nil
			}
			return true, fmt.Errorf("resource %s was deleted", r.Name)
		}
		if last = now; now.State() != state {
			return false, nil
		}
		fmt.Fprintf(t.Out, "resource %s is %s (revision %d, generation %d)\n", r.Name, state, kontrol.RevisionOf(now),
			now.Generation)
		return true, nil
	}
	for {
		over, err := watchOne(ctx, c, &kontrol.ResourceList{}, r.Name, done)
		if ctx.Err() != nil && !over {
			text := fmt.Sprintf("resource %s is %s, not %s", r.Name, last.State(), state)
			if last.Status.Message != "" && last.Status.ObservedGeneration == last.Generation {
				text += ": " + last.Status.Message
			}
			fmt.Fprintln(t.Err, text)
			return ctx.Err()
		}
		if over || err != nil { // else the server ended the watch: start another
			return err
		}
	}
}

// watchOne calls done with an object and after each change of it (nil once it does not exist), until done returns true
// or the watch ends.
func watchOne[T any, P interface {
	*T
	ctrl.Object
}](ctx context.Context, c *cluster, list ctrl.ObjectList, name string,
	done func(P) (bool, error)) (over bool, err error) {
	w, err := c.Client.Watch(ctx, list,
		&ctrl.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name)})
	if err != nil {
		return false, ignoreTimeout(ctx, err)
	}
	defer w.Stop()
	now := P(new(T)) // an object that was deleted before the watch has no event
	switch err := c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, now); {
	case apierrors.IsNotFound(err):
		return done(nil)
	case err != nil:
		return false, ignoreTimeout(ctx, err)
	}
	if over, err := done(now); over || err != nil {
		return over, err
	}
	for {
		event, open := next(ctx, w.ResultChan())
		if !open {
			return false, nil
		}
		o, ok := event.Object.(P)
		if !ok || o.GetName() != name {
			continue
		}
		if event.Type == apiwatch.Deleted {
			o = nil
		}
		if over, err := done(o); over || err != nil {
			return over, err
		}
	}
}

func ignoreTimeout(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return err
}

// next receives the next value of a channel. open is false once the channel is closed or the context ends.
func next[T any](ctx context.Context, of <-chan T) (v T, open bool) {
	select {
	case v, open = <-of:
		return v, open
	case <-ctx.Done():
		return v, false
	}
}

// Package run starts and stops the components of a process. Invariant: components start in order, each when those
// before it are ready (see Aside for the exception), and stop in reverse order, each when the one after it has
// returned or its timeout is over.
package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// How long a stop waits for components. One that hangs must not prevent others, above all the store, from closing. The
// process exits afterwards anyway.
const (
	stopEach = 10 * time.Second // for one component
	stopAll  = 30 * time.Second // for all of them together; then each of the rest gets stopRest
	stopRest = time.Second
)

// HungError names the components that did not stop in time.
type HungError struct{ Names []string }

func (e *HungError) Error() string {
	return "did not stop in time and was abandoned: " + strings.Join(e.Names, ", ")
}

// Component is a part of a process, such as the store or the scheduler.
type Component interface {
	// Name is short, lower case and unique in the process: "store".
	Name() string
	// Run runs the component until ctx is done, and returns when all its goroutines have ended. An error stops the
	// process; the end of ctx is not an error. Run is called at most once: a Group creates new components for each
	// term.
	Run(ctx context.Context) error
	// Ready is closed when the component serves. It stays open if Run fails before.
	Ready() <-chan struct{}
}

// Aside marks a component that the next ones do not need: they start without waiting for it. The last component still
// waits until all others are ready.
func Aside(c Component) Component { return aside{c} }

type aside struct{ Component }

// Observer has callbacks for the components' lifecycle. Nil functions are not called.
type Observer struct {
	// Started is called when a component became ready, with the time it took.
	Started func(name string, took time.Duration)
	// Stopped is called when a component's Run returned.
	Stopped func(name string, err error)
	// Hung is called when a component did not return within the given time after its context was cancelled.
	Hung func(name string, after time.Duration)
}

type running struct {
	Component
	cancel context.CancelFunc
	done   chan struct{}      // closed when Run has returned
	ready  chan time.Duration // receives the time until it was ready, once
}

func life(ctx context.Context, c Component) (err error) {
	g := Guard{Component: c.Name()}
	if p := g.Do("run", func() { err = c.Run(ctx) }); p != nil {
		return p
	}
	return err
}

// All runs the components until ctx is done or one of them fails, then stops the running ones in reverse order. It
// returns the first failure with the component's name, or nil if ctx was done. A component that returns nil before ctx
// is done has failed, too.
//
// A stop takes at most 30 s plus a second for each component. Components that have not returned by then are left
// running and named in a *HungError; the caller should exit.
func All(ctx context.Context, observe Observer, components ...Component) error {
	return all(ctx, observe, func() patience { return patience{stopEach, stopAll, stopRest} }, components)
}

type patience struct{ each, all, rest time.Duration }

// all is All with a patience that is determined when the stop begins.
func all(ctx context.Context, observe Observer, wait func() patience, components []Component) error {
	failed := make(chan error, len(components))
	var started, pending []running
	var first error
	for i, c := range components {
		if i == len(components)-1 && !await(ctx, observe, pending, failed, &first) {
			break
		}
		r := start(ctx, observe, c, failed)
		started = append(started, r)
		if _, ok := c.(aside); ok && i < len(components)-1 {
			pending = append(pending, r)
			continue
		}
		if !await(ctx, observe, []running{r}, failed, &first) {
			break
		}
	}
	if first == nil && len(started) == len(components) {
		select {
		case first = <-failed:
		case <-ctx.Done():
		}
	}
	hung := stop(started, observe, wait())
	if first == nil {
		select {
		case first = <-failed:
		default:
		}
	}
	if len(hung) > 0 {
		return errors.Join(first, &HungError{Names: hung})
	}
	return first
}

// start calls a component's Run with a separate context, so that components can be stopped one by one.
func start(ctx context.Context, observe Observer, c Component, failed chan<- error) running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := running{c, cancel, make(chan struct{}), make(chan time.Duration, 1)}
	began := time.Now()
	go func() {
		err := life(own, c)
		if observe.Stopped != nil {
			observe.Stopped(c.Name(), err)
		}
		if own.Err() == nil && err == nil {
			err = errors.New("stopped unexpectedly")
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%s: %w", c.Name(), err)
			failed <- err
		}
		close(r.done)
	}()
	go func() {
		select {
		case <-c.Ready():
			r.ready <- time.Since(began)
		case <-r.done:
		}
	}()
	return r
}

// await waits until all of list are ready. It returns false when a component failed, which it stores in first, or when
// ctx is done.
func await(ctx context.Context, observe Observer, list []running, failed <-chan error, first *error) bool {
	for _, r := range list {
		select {
		case took := <-r.ready:
			if observe.Started != nil {
				observe.Started(r.Name(), took)
			}
		case *first = <-failed:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func stop(started []running, observe Observer, p patience) (hung []string) {
	deadline := time.Now().Add(p.all)
	for _, r := range slices.Backward(started) {
		r.cancel()
		wait := max(min(p.each, time.Until(deadline)), p.rest)
		timer := time.NewTimer(wait)
		select {
		case <-r.done:
		case <-timer.C:
			hung = append(hung, r.Name())
			if observe.Hung != nil {
				observe.Hung(r.Name(), wait)
			}
		}
		timer.Stop()
	}
	return hung
}

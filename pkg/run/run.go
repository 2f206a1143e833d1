// Package run starts and stops the components of a process.
//
// It may import nothing of Coracle. Its invariant: components start in the
// order they are listed, each only once the one before it is ready, and stop
// in the reverse order, each only once the one after it has returned.
package run

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Component is one part of a process, such as the store or the scheduler.
type Component interface {
	// Name is short, lower case and unique in the process: "store".
	Name() string
	// Run does the component's work until ctx ends, and returns only when
	// nothing of it is left running. An error means that the process cannot
	// go on; the end of ctx is not an error. Run is called at most once.
	Run(ctx context.Context) error
	// Ready is closed once the component serves. It stays open if Run fails first.
	Ready() <-chan struct{}
}

// Observer is told of each component's life; nil functions are not called.
type Observer struct {
	// Started is called when a component became ready, with the time it took.
	Started func(name string, took time.Duration)
	// Stopped is called when a component's Run returned.
	Stopped func(name string, err error)
}

type running struct {
	Component
	cancel context.CancelFunc
	done   chan error
}

// All runs the components until ctx ends or one of them fails, then stops
// those that run, last first. It returns the first failure, named, or nil
// when ctx ended. A component that returns nil before ctx ends has failed too.
func All(ctx context.Context, observe Observer, components ...Component) error {
	failed := make(chan error, len(components))
	var started []running
	var first error
	for _, c := range components {
		// Each has a context of its own, so that the end of ctx stops them one by one.
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		r := running{c, cancel, make(chan error, 1)}
		began := time.Now()
		go func() {
			err := c.Run(own)
			if observe.Stopped != nil {
				observe.Stopped(c.Name(), err)
			}
			if own.Err() == nil && err == nil {
				err = errors.New("ended before it was asked to")
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				err = fmt.Errorf("%s: %w", c.Name(), err)
				failed <- err
			}
			r.done <- err
		}()
		started = append(started, r)
		select {
		case <-c.Ready():
			if observe.Started != nil {
				observe.Started(c.Name(), time.Since(began))
			}
			continue
		case first = <-failed:
		case <-ctx.Done():
		}
		break
	}
	if first == nil && len(started) == len(components) {
		select {
		case first = <-failed:
		case <-ctx.Done():
		}
	}
	for i := len(started) - 1; i >= 0; i-- {
		started[i].cancel()
		<-started[i].done
	}
	if first == nil {
		select {
		case first = <-failed:
		default:
		}
	}
	return first
}

package main

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// again is the pause before the next watch where one has ended.
const again = 100 * time.Millisecond

// events passes on the events of a watch until ctx ends. Where the watch ends, as when the server cuts off who reads
// too slowly, the next one begins where it was; if the server no longer has what has happened since, all objects come
// first, as they are. So only states can be waited for, not changes.
func events(ctx context.Context, open func(context.Context, metav1.ListOptions) (watch.Interface, error),
	version string) (<-chan watch.Event, error) {
	w, err := open(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		return nil, err
	}
	all := make(chan watch.Event)
	go func() {
		defer close(all)
		for {
			if err == nil {
				version, err = passOn(ctx, w, all, version)
			}
			switch {
			case expired(err):
				version, err = "", nil
			case cut(err):
				err = nil
			}
			if err != nil {
				select {
				case all <- watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}:
				case <-ctx.Done():
				}
				return
			}
			if pause(ctx, again) != nil {
				return
			}
			w, err = open(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		}
	}()
	return all, nil
}

// passOn passes on the events of a watch from a version on until it ends, and returns from which version the next one
// is to begin.
func passOn(ctx context.Context, w watch.Interface, all chan<- watch.Event, version string) (string, error) {
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return version, nil
			}
			if e.Type == watch.Error {
				return version, apierrors.FromObject(e.Object)
			}
			o, err := meta.Accessor(e.Object)
			if err != nil {
				return version, err
			}
			// Without a version the objects that are there come first, in any order.
			if version != "" || e.Type != watch.Added {
				version = o.GetResourceVersion()
			}
			if e.Type == watch.Bookmark {
				continue
			}
			select {
			case all <- e:
			case <-ctx.Done():
				return version, ctx.Err()
			}
		case <-ctx.Done():
			return version, ctx.Err()
		}
	}
}

// gone waits until there are none of the objects that the options select.
func gone(ctx context.Context, of dynamic.ResourceInterface, selected metav1.ListOptions) error {
	for {
		list, err := of.List(ctx, selected)
		if err != nil || len(list.Items) == 0 {
			return err
		}
		left := len(list.Items)
		after := selected
		after.ResourceVersion = list.GetResourceVersion()
		err = follow(ctx, of.Watch, after, func(e watch.Event) bool {
			if e.Type == watch.Deleted {
				left--
			}
			return left == 0
		})
		if err == nil || !errors.Is(err, errEnded) && !expired(err) && !cut(err) {
			return err
		}
		if err := pause(ctx, again); err != nil {
			return err
		}
	}
}

// expired reports whether the server no longer has what a watch would begin with.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// decoding is the cause in the error that client-go makes of what it cannot read from a watch's stream.
const decoding metav1.CauseType = "ClientWatchDecoding"

// cut reports whether a watch ended in the middle: the server resets the stream of who does not read.
func cut(err error) bool { return apierrors.HasStatusCause(err, decoding) }

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

// again is the pause before the next watch after one has ended.
const again = 100 * time.Millisecond

// events forwards the events of a watch until ctx ends. If the watch ends, for example because the server
// disconnects a slow reader, the next one resumes at the last version. If the server has discarded the history
// since then, all current objects come first. So callers can wait for states only, not for changes.
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

// passOn forwards the events of a watch from a version until the watch ends, and returns the version from which the
// next one begins.
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
			// Without a version the existing objects come first, in any order.
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

// gone waits until no object matches the options.
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

// expired reports whether the server has discarded the history that a watch needs.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// decoding is the cause in client-go's error for a watch stream that it cannot decode.
const decoding metav1.CauseType = "ClientWatchDecoding"

// cut reports whether a watch ended inside an event: the server resets the stream of a reader that is too slow.
func cut(err error) bool { return apierrors.HasStatusCause(err, decoding) }

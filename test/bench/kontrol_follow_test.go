package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// TestEvents checks that the next watch resumes where one has ended, and begins with all objects if it cannot.
func TestEvents(t *testing.T) {
	event := func(kind watch.EventType, name, version string) watch.Event {
		return watch.Event{
			Type: kind, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}},
		}
	}
	cut := apierrors.NewResourceExpired("the watch fell behind")
	reset := apierrors.NewGenericServerResponse(500, "get", schema.GroupResource{}, "", "stream error", 0, false)
	reset.ErrStatus.Details.Causes = append(reset.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: decoding, Message: "unable to decode an event from the watch stream",
	})
	type step struct {
		from   string // the requested version
		events []watch.Event
		err    error
	}
	steps := []step{
		{"5", []watch.Event{event(watch.Added, "a", "6"), event(watch.Bookmark, "", "8")}, nil}, // ends normally
		{"8", []watch.Event{{Type: watch.Error, Object: &reset.ErrStatus}}, nil},                // ends
		{"8", []watch.Event{event(watch.Modified, "a", "9"), {Type: watch.Error, Object: &cut.ErrStatus}}, nil},
		// Cut off before all objects were sent.
		{"", []watch.Event{event(watch.Added, "b", "12"), event(watch.Added, "a", "9")}, nil},
		{
			"",
			[]watch.Event{event(watch.Added, "b", "12"), event(watch.Added, "a", "9"), event(watch.Deleted, "a", "13")},
			nil,
		},
		{"13", nil, cut}, // refused
		{"", nil, errors.New("gone away")},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked []string
	all, err := events(ctx, func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
		s := steps[len(asked)]
		asked = append(asked, o.ResourceVersion)
		if s.err != nil {
			return nil, s.err
		}
		w := watch.NewFakeWithChanSize(len(s.events), false)
		for _, e := range s.events {
			w.Action(e.Type, e.Object)
		}
		w.Stop() // after its events
		return w, nil
	}, "5")
	require.NoError(t, err)
	var got []string
	failed := await(ctx, all, func(e watch.Event) bool {
		m, ok := e.Object.(*corev1.ConfigMap)
		require.True(t, ok, "%+v", e)
		got = append(got, string(e.Type)+" "+m.Name+" "+m.ResourceVersion)
		return false
	})
	require.ErrorContains(t, failed, "gone away")
	for _, open := <-all; open; _, open = <-all {
	}
	require.Equal(t,
		[]string{"ADDED a 6", "MODIFIED a 9", "ADDED b 12", "ADDED a 9", "ADDED b 12", "ADDED a 9", "DELETED a 13"}, got)
	for i, s := range steps {
		require.Equal(t, s.from, asked[i], "watch %d", i)
	}
	require.Len(t, asked, len(steps))
}

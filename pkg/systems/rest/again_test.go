package rest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestConflicts checks that a change is retried after a pause until the client gives up.
func TestConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conflict, other := apierrors.NewConflict(schema.GroupResource{}, "x", nil), errors.New("other")
		tries := 0
		began := time.Now()
		require.Equal(t, other, again(t.Context(), func() error {
			if tries++; tries < 10 {
				return conflict
			}
			return other
		}))
		require.Equal(t, 10, tries)
		require.Greater(t, time.Since(began), pauseMost)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tries = 0
		require.ErrorIs(t, again(ctx, func() error { tries++; return conflict }), context.DeadlineExceeded)
		require.Less(t, tries, 300)
	})
}

// TestConflictsDoNotSpin checks that every handler pauses after conflicts, which last until the cache has the other
// writer's change.
func TestConflictsDoNotSpin(t *testing.T) {
	w := newWorld(t)
	w.node("ours")
	worker := w.register(8081)
	id := w.task("a")
	pod := w.run(id, worker, 1)
	require.Equal(t, http.StatusCreated,
		w.do("POST", "/api/v1/services", `{"name":"web","selector":{"app":"web"},"ports":[{"port":80}]}`).status)
	for _, r := range [][3]string{
		{"POST", "/api/v1/nodes/" + worker + "/heartbeat", ``},
		{"PUT", "/api/v1/tasks/" + id + "/status", `{"status":"running"}`},
		{"PUT", "/api/v1/pods/" + pod.Name + "/status", `{"status":"running"}`},
		{"PUT", "/api/v1/services/web", `{"selector":{"app":"other"}}`},
	} {
		changes := w.broken.contend(5)
		require.Less(t, w.do(r[0], r[1], r[2]).status, 300, r)
		require.Len(t, changes, 5, r)
		close(changes)
		var times []time.Time
		for at := range changes {
			times = append(times, at)
		}
		require.Greater(t, times[4].Sub(times[0]), 7*pauseFirst, r) // half of 1, 2, 4 and 8 pauses, at least
	}
}

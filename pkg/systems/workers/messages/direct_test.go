package messages

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// direct delivers messages to the Manager like an API server in the same process, and returns the channel of their
// outcomes.
func (b *bench) direct(wait time.Duration, ids ...string) ([]*workers.Delivery, chan workers.Delivered) {
	out := make(chan workers.Delivered, len(ids))
	list := make([]*workers.Delivery, len(ids))
	for i, id := range ids {
		list[i] = &workers.Delivery{
			BatchMessage: workers.BatchMessage{ID: id, Payload: []byte("text " + id)},
			Namespace:    "ns",
			Pod:          "p",
			UID:          "uid",
			Done:         func(d workers.Delivered) { out <- d },
		}
		if wait > 0 {
			list[i].Deadline = time.Now().Add(wait)
		}
	}
	b.Accept(list)
	return list, out
}

func (b *bench) memory() int64 {
	b.bytes.mu.Lock()
	defer b.bytes.mu.Unlock()
	return b.bytes.used
}

func TestDirect(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w", Limit: 2}).setup()
	_, out := b.direct(time.Minute, "1")
	id, text := b.next()
	require.Equal(t, "text 1", text)
	require.Equal(t, http.StatusAccepted, b.reply(id, "world"))
	o := <-out
	require.Empty(t, o.Failure)
	require.Equal(t, "world", string(o.Payload))
	o.Release()
	require.Zero(t, b.memory())

	_, out = b.direct(0, "2", "3", "4") // in order, up to the limit
	require.Empty(t, (<-out).Failure)
	require.Empty(t, (<-out).Failure)
	require.Equal(t, workers.QueueFull, (<-out).Failure)
	_, text = b.next()
	require.Equal(t, "text 2", text)

	other := &workers.Delivery{
		BatchMessage: workers.BatchMessage{ID: "5"},
		Namespace:    "ns",
		Pod:          "p",
		UID:          "another",
		Done:         func(d workers.Delivered) { out <- d },
	}
	b.Accept([]*workers.Delivery{other})
	o = <-out
	require.Equal(t, workers.NoReceiver, o.Failure)
	require.True(t, o.Untouched)
}

// TestDirectPromise checks that at-least-once messages are on disk before they are accepted.
func TestDirectPromise(t *testing.T) {
	dir := t.TempDir()
	b := newBench(t, dir, workers.Queue{Worker: "w", Promise: workers.AtLeastOnce}).setup()
	_, out := b.direct(0, "1", "2")
	require.Empty(t, (<-out).Failure)
	require.Empty(t, (<-out).Failure)
	b.Stop()
	again := newBench(t, dir, workers.Queue{Worker: "w", Promise: workers.AtLeastOnce}).setup()
	_, text := again.next()
	require.Equal(t, "text 1", text)
}

// TestLateReply checks that the memory of a reply is released if its sender no longer waits.
func TestLateReply(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	large := strings.Repeat("x", 1<<20)
	list, out := b.direct(time.Minute, "1")
	id, _ := b.next()
	list[0].Cancel()
	require.Equal(t, workers.HandlerTimeout, (<-out).Failure)
	require.Equal(t, http.StatusAccepted, b.reply(id, large))
	_, out = b.direct(time.Millisecond, "2") // its deadline passes
	require.Equal(t, workers.HandlerTimeout, (<-out).Failure)

	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan Outcome)
	go func() { got <- b.Deliver(ctx, Target{"ns", "p", "uid"}, b.message("3", "x"), true) }()
	id, _ = b.next()
	cancel()
	require.Equal(t, workers.HandlerTimeout, (<-got).Failure)
	require.Equal(t, http.StatusAccepted, b.reply(id, large))
	require.Zero(t, b.memory())
}

// TestADeadlineBeforeTheQueue checks that no program gets a message whose deadline passed before it was queued,
// since its sender got that error.
func TestADeadlineBeforeTheQueue(t *testing.T) {
	b := newBench(t, t.TempDir(), workers.Queue{Worker: "w"}).setup()
	for range 100 {
		_, out := b.direct(time.Nanosecond, "late")
		require.Equal(t, workers.HandlerTimeout, (<-out).Failure)
		require.Zero(t, b.memory())
	}
	_, out := b.direct(time.Minute, "next")
	id, text := b.next()
	require.Equal(t, "text next", text)
	require.Equal(t, http.StatusAccepted, b.reply(id, "x"))
	o := <-out
	require.Empty(t, o.Failure)
	o.Release()
}

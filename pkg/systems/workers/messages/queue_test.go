package messages

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestQueueModel checks that under any events of programs, servers and pods every accepted delivery has exactly one
// outcome, that a program gets it at most once, and that a message is not called untouched that a program has got.
func TestQueueModel(t *testing.T) {
	test := t
	rapid.Check(t, func(t *rapid.T) {
		synctest.Test(test, func(*testing.T) {
			c := workers.Queue{Concurrency: rapid.Int32Range(1, 3).Draw(t, "concurrency"), TimeoutSeconds: 30}
			q := newQueue(c)
			q.observe("c0", true)
			outcomes, given := map[string][]Outcome{}, map[string]int{}
			var all, taken []*entry
			n, container := 0, 0
			some := func() *entry {
				if len(taken) == 0 {
					return nil
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				e := taken[i]
				taken = append(taken[:i], taken[i+1:]...)
				return e
			}
			t.Repeat(map[string]func(*rapid.T){
				"offer": func(*rapid.T) {
					n++
					e := &entry{Message: Message{ID: fmt.Sprint(n), payload: &payload{}}}
					e.notify = func(o Outcome) { outcomes[e.ID] = append(outcomes[e.ID], o) }
					if f, _ := q.offer(e); f == "" {
						all = append(all, e)
					}
				},
				"take": func(*rapid.T) {
					if e := q.tryTake(); e != nil {
						given[e.ID]++
						taken = append(taken, e)
					}
				},
				"reply": func(*rapid.T) {
					if e := some(); e != nil {
						q.resolve(e.ID, Outcome{})
					}
				},
				"give back": func(*rapid.T) {
					if e := some(); e != nil {
						q.mu.Lock()
						mine := e.state == inFlight
						q.mu.Unlock()
						if q.giveBack(e); mine {
							given[e.ID]--
						}
					}
				},
				"crash": func(*rapid.T) {
					q.observe(fmt.Sprint("c", container), false)
					container++
					q.observe(fmt.Sprint("c", container), true)
				},
				"server goes": func(*rapid.T) {
					for _, e := range all {
						q.abandon(e)
					}
				},
				"later": func(t *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds")) * time.Second)
					synctest.Wait()
				},
				"": func(t *rapid.T) {
					q.mu.Lock()
					defer q.mu.Unlock()
					require.LessOrEqual(t, len(q.flight), int(c.Concurrency))
					require.LessOrEqual(t, len(q.list), 2*int(c.Concurrency))
				},
			})
			q.release()
			for _, e := range all {
				require.Len(t, outcomes[e.ID], 1, "message %s", e.ID)
				require.LessOrEqual(t, given[e.ID], 1)
				if outcomes[e.ID][0].Untouched {
					require.Zero(t, given[e.ID], "message %s", e.ID)
				}
			}
		})
	})
}

// TestUntakenMessagesGoBack checks that a message does not stay with a program that does not ask for it.
func TestUntakenMessagesGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(workers.Queue{Concurrency: 1, TimeoutSeconds: 60})
		var got Outcome
		e := &entry{Message: Message{ID: "1", payload: &payload{}}, notify: func(o Outcome) { got = o }}
		f, _ := q.offer(e)
		require.Empty(t, f)
		time.Sleep(handTime)
		synctest.Wait()
		require.Equal(t, workers.NoReceiver, got.Failure)
		require.True(t, got.Untouched)
		require.Nil(t, q.tryTake())
		q.release()
	})
}

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

type recorder struct {
	attempts, ends map[string]int
	how            map[string]string
}

func newRecorder() *recorder {
	return &recorder{attempts: map[string]int{}, ends: map[string]int{}, how: map[string]string{}}
}

func (r *recorder) changed()         {}
func (r *recorder) attempt(e *entry) { r.attempts[e.ID]++ }
func (r *recorder) end(e *entry, how string) {
	r.ends[e.ID]++
	r.how[e.ID] = how
}
func (r *recorder) finished(e *entry)                 { r.end(e, "finished") }
func (r *recorder) undeliverable(e *entry, o Outcome) { r.end(e, string(o.Failure)) }
func (r *recorder) moved(e *entry)                    { r.end(e, "moved") }
func queueOf(p workers.Promise, concurrency int32) workers.Queue {
	return workers.Queue{
		Worker:         "w",
		Concurrency:    concurrency,
		Limit:          5,
		TimeoutSeconds: 10,
		QueueSeconds:   100,
		Promise:        p,
		MaxAttempts:    3,
	}
}

// TestQueueModel checks that under any events of programs, senders and pods every accepted message ends exactly once.
// With AtMostOnce no program gets it twice. With AtLeastOnce it fails only after maxAttempts or after waiting too long.
func TestQueueModel(t *testing.T) {
	test := t
	rapid.Check(t, func(t *rapid.T) {
		synctest.Test(test, func(*testing.T) {
			promise := rapid.SampledFrom([]workers.Promise{workers.AtMostOnce, workers.AtLeastOnce}).Draw(t, "promise")
			rec := newRecorder()
			q := newQueue(queueOf(promise, rapid.Int32Range(1, 3).Draw(t, "concurrency")), rec)
			q.observe("c0", true)
			accepted, returned, succeeded := map[string]bool{}, map[string]int{}, map[string]bool{}
			replies := map[string]*entry{}
			var taken []handed
			n, container := 0, 0
			some := func() (handed, bool) {
				if len(taken) == 0 {
					return handed{}, false
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				h := taken[i]
				taken = append(taken[:i], taken[i+1:]...)
				return h, true
			}
			t.Repeat(map[string]func(*rapid.T){
				"offer": func(t *rapid.T) {
					n++
					e := &entry{Message: Message{ID: fmt.Sprint(n), payload: &payload{}}}
					if rapid.Bool().Draw(t, "waits") {
						e.reply = &waiter{notify: func(Outcome) {}}
						replies[e.ID] = e
					}
					if f := q.offer(e, false); f == "" {
						accepted[e.ID] = true
					} else {
						delete(replies, e.ID)
					}
				},
				"take": func(*rapid.T) {
					if h := q.tryTake(); h.entry != nil {
						taken = append(taken, h)
					}
				},
				"reply": func(*rapid.T) {
					if h, ok := some(); ok && q.resolve(h.ID, 0, Outcome{}) {
						succeeded[h.ID] = true
					}
				},
				"fail": func(*rapid.T) {
					if h, ok := some(); ok {
						q.resolve(h.ID, h.attempt, Outcome{Failure: workers.HandlerFailed})
					}
				},
				"give back": func(*rapid.T) {
					if h, ok := some(); ok {
						q.mu.Lock()
						mine := h.state == inFlight && h.Attempts == h.attempt
						q.mu.Unlock()
						if q.giveBack(h); mine {
							returned[h.ID]++
						}
					}
				},
				"crash": func(*rapid.T) {
					q.observe(fmt.Sprint("c", container), false)
					container++
					q.observe(fmt.Sprint("c", container), true)
				},
				"abandon": func(t *rapid.T) {
					for _, e := range replies {
						q.abandon(e)
						break
					}
				},
				"later": func(t *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds")) * time.Second)
					synctest.Wait()
				},
				"": func(t *rapid.T) {
					q.mu.Lock()
					defer q.mu.Unlock()
					require.LessOrEqual(t, len(q.flight), int(q.config.Concurrency))
					require.LessOrEqual(t, len(q.list)+len(q.later), int(q.config.Limit)+int(q.config.Concurrency))
					for id, times := range rec.ends {
						require.Equal(t, 1, times, "message %s ended twice", id)
						require.True(t, accepted[id])
					}
				},
			})
			if rapid.Bool().Draw(t, "removed") {
				q.release()
			} else {
				time.Sleep(time.Hour)
				synctest.Wait()
			}
			q.mu.Lock()
			for id := range accepted {
				require.Equal(t, 1, rec.ends[id], "message %s was lost", id)
				given := rec.attempts[id] - returned[id]
				if promise == workers.AtMostOnce {
					require.LessOrEqual(t, given, 1, "message %s was given twice", id)
				} else {
					require.LessOrEqual(t, given, 3)
				}
				if how := rec.how[id]; promise == workers.AtLeastOnce && replies[id] == nil && how != "finished" &&
					how != "moved" && how != string(workers.HandlerTimeout) {
					require.Equal(t, 3, given, "message %s was given up early: %s", id, how)
				}
			}
			q.mu.Unlock()
			q.release()
		})
	})
}

func TestQueueBounds(t *testing.T) {
	q := newQueue(queueOf(workers.AtMostOnce, 1), newRecorder())
	for i := range 5 {
		require.Empty(t, q.offer(&entry{Message: Message{ID: fmt.Sprint(i), payload: &payload{}}}, false))
	}
	require.Equal(t, workers.QueueFull, q.offer(&entry{Message: Message{ID: "6", payload: &payload{}}}, false))
	h := q.tryTake()
	require.Equal(t, "0", h.ID)
	require.Nil(t, q.tryTake().entry, "concurrency is 1")
	q.close()
	require.Equal(t, workers.NoReceiver, q.offer(&entry{Message: Message{ID: "7", payload: &payload{}}}, false))
	require.True(t, q.resolve("0", 0, Outcome{}), "what a program has goes on")
	require.False(t, q.resolve("0", 0, Outcome{}), "a second reply is refused")
	q.release()
}

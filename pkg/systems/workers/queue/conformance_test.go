package queue

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	k     = Key{Namespace: "ns", Worker: "w"}
	many  = Limits{Messages: 1000}
	never = time.Now().Add(time.Hour)
)

func message(id string, durable bool) Message {
	return Message{
		ID: id, ContentType: "text/plain", Payload: []byte("text " + id), Durable: durable, Arrived: time.Now(),
		Expires: never,
	}
}

// open returns a Local on the directory and closes it at the end of the test. volatile ones have no directory.
func open(t require.TestingT, dir string, change func(*Config)) *Local {
	c := Config{Logger: slog.New(slog.DiscardHandler)}
	if dir != "" {
		c.File = filepath.Join(dir, "queues.db")
	}
	if change != nil {
		change(&c)
	}
	l, err := Open(c)
	require.NoError(t, err)
	return l
}

func add(t require.TestingT, q Queues, list ...Message) {
	for _, err := range q.Append(k, many, list)() {
		require.NoError(t, err)
	}
}

func claim(t require.TestingT, q Queues, id, pod string) Message {
	m, ok := q.Claim(k, pod)
	require.True(t, ok, id)
	require.Equal(t, id, m.ID)
	require.Equal(t, "text "+id, string(m.Payload))
	return m
}

// TestConformance runs the suite of Queues against each implementation, with durable messages and with others.
func TestConformance(t *testing.T) {
	servers := startNATS(t, func(o *server.Options) { o.MaxPayload = maxBytes/4 + headerRoom })
	for name, begin := range map[string]func(*testing.T) Queues{
		"in a file": func(t *testing.T) Queues {
			l := open(t, t.TempDir(), nil)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			return l
		},
		"in memory": func(t *testing.T) Queues { return open(t, "", nil) },
		"in NATS": func(t *testing.T) Queues {
			servers.fresh()
			h, other := servers.home(nil), Key{Namespace: "ns", Pod: "p"}
			h.Place(other, "other-"+servers.id)
			t.Cleanup(func() {
				h.Discard(k)
				h.Discard(other)
				require.NoError(t, h.close())
			})
			h.until(t, "")
			return h
		},
	} {
		for what, test := range map[string]func(*testing.T, Queues, bool){
			"order": conformsOrder, "delay": conformsDelay,
			"return": conformsReturn, "dead": conformsDead, "expiry": conformsExpiry,
			"targets": conformsTargets, "bounds": conformsBounds, "list": conformsList,
			"dedup": conformsDedup, "keys": conformsKeys,
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				test(t, begin(t), name != "in memory")
			})
		}
	}
}

func conformsOrder(t *testing.T, q Queues, durable bool) {
	left, ok := q.Claim(k, "p")
	require.False(t, ok, "%+v", left)
	add(t, q, message("1", durable), message("2", durable))
	add(t, q, message("3", durable))
	require.Equal(t, ErrDuplicate, q.Append(k, many, []Message{message("1", durable)})()[0])
	require.Equal(t, []Key{k}, q.Keys())
	require.EqualValues(t, 1, claim(t, q, "1", "p").Attempts)
	claim(t, q, "2", "p")
	d := q.Depth(k)
	require.Equal(t, []int{1, 2, 0}, []int{d.Waiting, d.InFlight, d.Dead})
	q.Acknowledge(k, "2")
	q.Acknowledge(k, "3") // not claimed
	require.False(t, q.Withdraw(k, "1"), "a pod has it")
	require.True(t, q.Withdraw(k, "3"))
	q.Acknowledge(k, "1")
	require.Equal(t, Depth{}, q.Depth(k))
	require.Empty(t, q.Keys())
}

func conformsDelay(t *testing.T, q Queues, durable bool) {
	m := message("1", durable)
	m.Due = time.Now().Add(500 * time.Millisecond)
	add(t, q, m, message("2", durable))
	d := q.Depth(k)
	require.Equal(t, []int{2, 1}, []int{d.Waiting, d.Delayed})
	claim(t, q, "2", "p")
	require.True(t, q.Next(k).Equal(m.Due))
	require.Eventually(t, func() bool {
		got, ok := q.Claim(k, "p")
		return ok && got.ID == "1" && !time.Now().Before(m.Due)
	}, 10*time.Second, time.Millisecond)
}

func conformsReturn(t *testing.T, q Queues, durable bool) {
	add(t, q, message("1", durable), message("2", durable))
	claim(t, q, "1", "p")
	q.Return(k, "1", Result{Untouched: true})
	require.EqualValues(t, 1, claim(t, q, "1", "p").Attempts, "in its place, and the attempt does not count")
	q.Return(k, "1", Result{Error: "no"})
	m := claim(t, q, "1", "p")
	require.EqualValues(t, 2, m.Attempts)
	require.Equal(t, "no", m.Error)
	q.Return(k, "1", Result{Delay: 20 * time.Millisecond, Error: "no"})
	require.WithinDuration(t, time.Now(), q.Next(k), time.Second)
	require.Equal(t, Delayed, q.List(k, "", 0, 1)[0].State)
	claim(t, q, "2", "p")
	require.Eventually(t, func() bool {
		m, ok := q.Claim(k, "p")
		return ok && m.ID == "1" && m.Attempts == 3
	}, 10*time.Second, time.Millisecond)
}

func conformsDead(t *testing.T, q Queues, durable bool) {
	for i := range maxDead + 2 {
		id := fmt.Sprint(i)
		add(t, q, message(id, durable))
		claim(t, q, id, "p")
		removed := q.Return(k, id, Result{Dead: true, Error: "bad"})
		if i < maxDead {
			require.Empty(t, removed)
		} else {
			require.Equal(t, fmt.Sprint(i-maxDead), removed[0].ID, "the oldest goes")
		}
	}
	_, ok := q.Claim(k, "p")
	require.False(t, ok)
	require.Equal(t, maxDead, q.Depth(k).Dead)
	require.Zero(t, q.Redrive(k, "none", never))
	require.Equal(t, 1, q.Redrive(k, "7", never))
	require.EqualValues(t, 1, claim(t, q, "7", "p").Attempts)
	require.Equal(t, maxDead-1, q.Redrive(k, "", never))
	require.Equal(t, maxDead-1, q.Depth(k).Waiting)
	var gone []string
	require.Equal(t, maxDead-1, q.Purge(k, false, func(id string) { gone = append(gone, id) }))
	require.Len(t, gone, maxDead-1)
	require.Equal(t, 1, q.Depth(k).InFlight, "a program has it")
}

func conformsExpiry(t *testing.T, q Queues, durable bool) {
	m := message("1", durable)
	m.Expires = time.Now().Add(10 * time.Millisecond)
	add(t, q, m, message("2", durable))
	require.True(t, q.Next(k).Equal(m.Expires))
	var late []Message
	require.Eventually(t, func() bool {
		late = q.Overdue(k)
		return len(late) > 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, "1", late[0].ID)
	require.Equal(t, "text 1", string(late[0].Payload))
	require.Zero(t, late[0].Attempts)
	require.Equal(t, 1, q.Depth(k).InFlight, "it is claimed")
	q.Acknowledge(k, "1")
	claim(t, q, "2", "p")
}

func conformsTargets(t *testing.T, q Queues, durable bool) {
	to := func(id, pod string) Message {
		m := message(id, durable)
		m.Target = pod
		return m
	}
	add(t, q, to("1", "a"), to("2", "b"), to("3", ""), to("4", "b"))
	claim(t, q, "2", "b")
	claim(t, q, "3", "b")
	claim(t, q, "4", "b")
	_, ok := q.Claim(k, "b")
	require.False(t, ok, "the rest is for another pod")
	q.Return(k, "2", Result{})
	q.Return(k, "4", Result{Delay: time.Minute})
	gone := q.Retarget(k, "b")
	if durable {
		require.Empty(t, gone)
		claim(t, q, "2", "c")
		require.Equal(t, "", q.List(k, Delayed, 0, 10)[0].Pod())
		return
	}
	require.Len(t, gone, 2)
	require.Equal(t, 3+1, q.Depth(k).InFlight+q.Depth(k).Waiting)
}

func (m *Message) Pod() string { return m.Target }

func conformsBounds(t *testing.T, q Queues, durable bool) {
	few := Limits{Messages: 2}
	errs := q.Append(k, few, []Message{message("1", durable), message("2", durable), message("3", durable)})()
	require.Equal(t, []error{nil, nil, ErrFull}, errs)
	claim(t, q, "1", "p")
	require.Equal(t, []error{nil}, q.Append(k, few, []Message{message("3", durable)})(), "one in flight does not wait")
	require.Equal(t, []error{ErrFull}, q.Append(k, few, []Message{message("4", durable)})())
	other := Key{Namespace: "ns", Pod: "p"}
	require.Equal(t, []error{nil}, q.Append(other, few, []Message{message("1", durable)})(), "another queue")
	big := message("big", durable)
	big.Payload = make([]byte, maxBytes/4)
	var full error
	for i := range 10 {
		m := big
		m.ID = fmt.Sprint("big", i)
		if full = q.Append(other, many, []Message{m})()[0]; full != nil {
			require.Equal(t, 3, i, "the payloads are bounded")
			break
		}
	}
	require.Equal(t, ErrFull, full)
}

func conformsList(t *testing.T, q Queues, durable bool) {
	for i := range 10 {
		add(t, q, message(fmt.Sprint(i), durable))
	}
	claim(t, q, "0", "p")
	var ids []string
	after := uint64(0)
	for {
		page := q.List(k, "", after, 3)
		for _, m := range page {
			require.Empty(t, m.Payload)
			require.Equal(t, 6, m.Size)
			ids, after = append(ids, m.ID), m.Seq
		}
		if len(page) < 3 {
			break
		}
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, ids)
	require.Len(t, q.List(k, InFlight, 0, 100), 1)
	m, ok := q.Find(k, "5")
	require.True(t, ok)
	require.Equal(t, "text 5", string(m.Payload))
	_, ok = q.Find(k, "none")
	require.False(t, ok)
}

// named is a message with a DedupID.
func named(id, dedup string, durable bool) Message {
	m := message(id, durable)
	m.DedupID = dedup
	return m
}

// repeats checks that a message is taken for an earlier one with the ID.
func repeats(t require.TestingT, q Queues, m Message, id string) {
	require.Equal(t, []error{&DuplicateError{ID: id}}, q.Append(k, many, []Message{m})())
}

func conformsDedup(t *testing.T, q Queues, durable bool) {
	errs := q.Append(k, many, []Message{named("1", "a", durable), named("2", "a", durable), named("3", "b", durable)})()
	require.Equal(t, []error{nil, &DuplicateError{ID: "1"}, nil}, errs)
	require.Equal(t, 2, q.Depth(k).Waiting)
	require.Equal(t, &DuplicateError{ID: "3"}, q.Append(k, Limits{}, []Message{named("4", "b", durable)})()[0],
		"a full queue has accepted it")
	claim(t, q, "1", "p")
	repeats(t, q, named("5", "a", durable), "1")
	q.Acknowledge(k, "1")
	repeats(t, q, named("6", "a", durable), "1")
	claim(t, q, "3", "p")
	q.Return(k, "3", Result{Dead: true, Error: "bad"})
	repeats(t, q, named("7", "b", durable), "3")
	m, ok := q.Find(k, "3")
	require.True(t, ok)
	require.Equal(t, Dead, m.State)
	require.Equal(t, 1, q.Redrive(k, "3", never), "its own DedupID does not concern a dead message")
	claim(t, q, "3", "p")
	q.Acknowledge(k, "3")
	require.Equal(t, Depth{}, q.Depth(k))
	require.Empty(t, q.Keys())
	require.Empty(t, q.List(k, "", 0, 10))
	old := named("8", "c", durable)
	old.Arrived = old.Arrived.Add(-Window)
	add(t, q, old, named("9", "c", durable))
	repeats(t, q, named("10", "c", durable), "9")
	claim(t, q, "8", "p")
	q.Acknowledge(k, "8")
	require.True(t, q.Withdraw(k, "9"))
	repeats(t, q, named("11", "c", durable), "9")
	q.Discard(k)
	if !durable {
		add(t, q, named("12", "c", durable))
	}
}

// TestDurableModel checks with any events and restarts that an accepted message is in the queue until it is removed,
// keeps its attempts and its place, that its DedupID is remembered, and that the space is given back.
func TestDurableModel(t *testing.T) {
	t.Run("in a file", rapid.MakeCheck(func(t *rapid.T) {
		dir := rapidDir(t)
		l := model(t, func() (*Local, func() error) {
			l := open(t, dir, nil)
			return l, l.Close
		})
		require.NoFileExists(t, l.c.File, "an empty database would never shrink")
	}))
	servers := startNATS(t, nil)
	t.Run("in NATS", rapid.MakeCheck(func(t *rapid.T) {
		var last *home
		servers.fresh()
		model(t, func() (*Local, func() error) {
			last = servers.home(nil)
			last.until(servers.t, "")
			return last.Local, last.close
		})
		require.NoError(t, servers.jetstream().DeleteStream(context.Background(), "coracle-"+servers.id))
	}))
}

func model(t *rapid.T, open func() (*Local, func() error)) *Local {
	l, end := open()
	defer func() { _ = end() }()
	have, attempts, flight, n := []string{}, map[string]int32{}, []string{}, 0
	drop := func(list []string, id string) []string {
		return slices.DeleteFunc(list, func(s string) bool { return s == id })
	}
	t.Repeat(map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			n++
			id := fmt.Sprint(n)
			add(t, l, named(id, "dedup "+id, true))
			have = append(have, id)
		},
		"repeat": func(t *rapid.T) {
			if n > 0 {
				id := fmt.Sprint(rapid.IntRange(1, n).Draw(t, "id"))
				repeats(t, l, named("other", "dedup "+id, true), id)
			}
		},
		"claim": func(*rapid.T) {
			if m, ok := l.Claim(k, "p"); ok {
				flight = append(flight, m.ID)
				attempts[m.ID]++
			}
		},
		"acknowledge": func(*rapid.T) {
			if len(flight) > 0 {
				id := flight[0]
				l.Acknowledge(k, id)
				flight, have = flight[1:], drop(have, id)
			}
		},
		"return": func(t *rapid.T) {
			if len(flight) > 0 {
				l.Return(k, flight[0], Result{Dead: rapid.Bool().Draw(t, "dead")})
				flight = flight[1:]
			}
		},
		"restart": func(t *rapid.T) {
			require.NoError(t, end())
			l, end = open()
			flight = nil
		},
		"": func(t *rapid.T) {
			ids := []string{}
			for _, m := range l.List(k, "", 0, 10_000) {
				ids = append(ids, m.ID)
				require.Equal(t, attempts[m.ID], m.Attempts)
			}
			require.Equal(t, have, ids)
			require.Len(t, l.List(k, InFlight, 0, 10_000), len(flight))
		},
	})
	for _, id := range flight {
		l.Acknowledge(k, id)
	}
	l.Purge(k, false, func(string) {})
	l.mu.Lock()
	if q := l.queues[k]; q != nil {
		require.Len(t, q.ids, n)
		l.forgetAll(q)
	}
	l.mu.Unlock()
	require.Equal(t, usage{}, l.all)
	require.Empty(t, l.used)
	require.NoError(t, end())
	return l
}

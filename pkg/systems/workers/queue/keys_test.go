package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// keyed is a message with an OrderKey.
func keyed(id, key string, durable bool) Message {
	m := message(id, durable)
	m.OrderKey = key
	return m
}

func conformsKeys(t *testing.T, q Queues, durable bool) {
	none := func() {
		t.Helper()
		m, ok := q.Claim(k, "p")
		require.False(t, ok, m.ID)
	}
	add(t, q, keyed("1", "a", durable), keyed("2", "a", durable), keyed("3", "b", durable), keyed("4", "a", durable),
		keyed("5", "b", durable), message("6", durable))
	d := q.Depth(k)
	require.Equal(t, []int{6, 3}, []int{d.Waiting, d.Delayed}, "no pod can have the blocked ones")
	require.Len(t, q.List(k, Blocked, 0, 10), 3)
	claim(t, q, "1", "p")
	claim(t, q, "3", "p")
	claim(t, q, "6", "p")
	none()
	q.Return(k, "1", Result{Delay: 20 * time.Millisecond, Error: "no"})
	none()
	require.Eventually(t, func() bool {
		m, ok := q.Claim(k, "p")
		require.True(t, !ok || m.ID == "1", "the later ones wait for the next attempt")
		return ok
	}, 10*time.Second, time.Millisecond)
	q.Return(k, "1", Result{Untouched: true})
	claim(t, q, "1", "p")
	q.Return(k, "1", Result{Dead: true})
	claim(t, q, "2", "p") // a dead message releases its key
	require.Equal(t, 1, q.Redrive(k, "1", never))
	none()
	q.Return(k, "2", Result{})
	claim(t, q, "1", "p") // it arrived first
	q.Acknowledge(k, "1")
	claim(t, q, "2", "p")
	require.True(t, q.Withdraw(k, "4"))
	add(t, q, keyed("7", "a", durable))
	q.Acknowledge(k, "2")
	require.True(t, q.Withdraw(k, "7"), "the first one of its key")
	add(t, q, keyed("8", "a", durable))
	claim(t, q, "8", "p")

	late := keyed("9", "b", durable)
	late.Expires = time.Now()
	add(t, q, late)
	require.Equal(t, "9", q.Overdue(k)[0].ID, "a blocked message expires")
	q.Acknowledge(k, "9")
	q.Acknowledge(k, "3")
	claim(t, q, "5", "p")

	to := keyed("10", "b", durable)
	to.Target = "gone"
	add(t, q, to, keyed("11", "b", durable))
	if gone := q.Retarget(k, "gone"); !durable {
		require.Len(t, gone, 1)
		q.Acknowledge(k, "10")
	} else {
		q.Acknowledge(k, "5")
		claim(t, q, "10", "p")
		q.Acknowledge(k, "10")
		claim(t, q, "11", "p")
	}
	q.Purge(k, false, func(string) {})
	for _, m := range q.List(k, "", 0, 10) {
		q.Acknowledge(k, m.ID)
	}
	require.Equal(t, Depth{}, q.Depth(k))
}

// TestKeysModel checks with any events and restarts that a message with a key is claimed only when all earlier ones
// with the key have ended or are dead, that no key stays blocked, and that nothing is left of the keys.
func TestKeysModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := rapidDir(t)
		l := open(t, dir, nil)
		defer func() { require.NoError(t, l.Close()) }()
		keys := map[string]string{} // by ID
		n := 0
		flight := func() []string {
			var ids []string
			for _, m := range l.List(k, InFlight, 0, 1000) {
				ids = append(ids, m.ID)
			}
			return ids
		}
		pick := func(t *rapid.T) (string, bool) {
			ids := flight()
			if len(ids) == 0 {
				return "", false
			}
			return rapid.SampledFrom(ids).Draw(t, "id"), true
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				var list []Message
				for range rapid.IntRange(1, 4).Draw(t, "number") {
					n++
					key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key")
					m := keyed(fmt.Sprint(n), key, rapid.Bool().Draw(t, "durable"))
					m.Target = rapid.SampledFrom([]string{"", "", "p"}).Draw(t, "target")
					keys[m.ID] = m.OrderKey
					list = append(list, m)
				}
				add(t, l, list...)
			},
			"claim": func(t *rapid.T) {
				m, ok := l.Claim(k, "p")
				for _, o := range l.List(k, "", 0, 1000) {
					if !ok {
						require.NotEqual(t, Waiting, o.State)
					} else if m.OrderKey != "" && o.OrderKey == m.OrderKey && o.State != Dead && o.ID != m.ID {
						require.Greater(t, o.Seq, m.Seq)
						require.NotEqual(t, InFlight, o.State)
					}
				}
			},
			"end": func(t *rapid.T) {
				if id, ok := pick(t); ok {
					l.Acknowledge(k, id)
				}
			},
			"return": func(t *rapid.T) {
				if id, ok := pick(t); ok {
					l.Return(k, id, Result{Dead: rapid.Bool().Draw(t, "dead")})
				}
			},
			"redrive": func(*rapid.T) { l.Redrive(k, "", never) },
			"retarget": func(*rapid.T) {
				for _, m := range l.Retarget(k, "p") {
					l.Acknowledge(k, m.ID)
				}
			},
			"withdraw": func(t *rapid.T) { l.Withdraw(k, fmt.Sprint(rapid.IntRange(0, n).Draw(t, "any"))) },
			"restart": func(*rapid.T) {
				require.NoError(t, l.Close())
				l = open(t, dir, nil)
			},
			"": func(t *rapid.T) {
				d := l.Depth(k)
				require.Equal(t, d.Delayed, len(l.List(k, Blocked, 0, 1000)))
			},
		})
		l.Purge(k, true, func(string) {})
		for l.Depth(k).Waiting+l.Depth(k).InFlight > 0 { // no key stays blocked
			for _, id := range flight() {
				l.Acknowledge(k, id)
			}
			_, ok := l.Claim(k, "p")
			require.True(t, ok || l.Depth(k).Waiting == 0)
		}
		require.Empty(t, l.queues)
	})
}

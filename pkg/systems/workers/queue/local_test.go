package queue

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func rapidDir(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "queue")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestServersSpaceIsShared checks that a namespace cannot take all of the server's space.
func TestServersSpaceIsShared(t *testing.T) {
	l := open(t, "", func(c *Config) { c.Memory = 1 << 20 })
	fill := func(namespace string) (n int) {
		for {
			m := message(fmt.Sprint(n), false)
			m.Payload = make([]byte, 100<<10)
			if err := l.Append(Key{Namespace: namespace, Worker: "w"}, many, []Message{m})()[0]; err != nil {
				require.Equal(t, ErrNoRoom, err)
				return n
			}
			n++
		}
	}
	require.Equal(t, 5, fill("greedy"))
	require.Equal(t, 3, fill("other"), "as much as stays free")
}

func TestDiskReserve(t *testing.T) {
	require.Equal(t, ErrNoDisk, open(t, "", nil).Append(k, many, []Message{message("1", true)})()[0])
	l := open(t, t.TempDir(), func(c *Config) { c.Reserve = math.MaxInt64 })
	require.Equal(t, ErrDiskFull, l.Append(k, many, []Message{message("1", true)})()[0])
	add(t, l, message("2", false))
	require.NoError(t, l.Close())
	require.Equal(t, ErrClosed, l.Append(k, many, []Message{message("3", true)})()[0])
}

// TestFailedWrites checks that a message is not accepted whose write fails, and that the queue accepts later messages.
func TestFailedWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	l := open(t, "", func(c *Config) { c.File = filepath.Join(dir, "queues.db") })
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // a file in place of the directory
	require.Error(t, l.Append(k, many, []Message{message("1", true)})()[0])
	require.Equal(t, Depth{}, l.Depth(k))
	require.Equal(t, usage{}, l.all)
	require.NoError(t, os.Remove(dir))
	add(t, l, message("1", true))
	claim(t, l, "1", "p")
	require.NoError(t, l.Close())
}

func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queues.db"), []byte(strings.Repeat("damaged", 10_000)), 0o600))
	_, err := Open(Config{File: filepath.Join(dir, "queues.db")})
	require.ErrorContains(t, err, "move the file away")
}

// TestSendersShareASync checks that senders that wait together share transactions.
func TestSendersShareASync(t *testing.T) {
	var transactions atomic.Int64
	l := open(t, t.TempDir(), func(c *Config) {
		c.At = func(step string) {
			if step == "after the transaction" {
				transactions.Add(1)
			}
		}
	})
	var all sync.WaitGroup
	const senders, each = 64, 10
	for s := range senders {
		all.Go(func() {
			for i := range each {
				if err := l.Append(k, many, []Message{message(fmt.Sprint(s, "-", i), true)})()[0]; err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Less(t, transactions.Load(), int64(senders*each/2))
	require.Equal(t, senders*each, l.Depth(k).Waiting)
	require.NoError(t, l.Close())
}

// TestKilled kills a process at each step of its work with a queue, and checks that the next process has each message
// that was accepted and not acknowledged, once and in order, and all their DedupIDs.
func TestKilled(t *testing.T) {
	if at := os.Getenv("CORACLE_QUEUE_KILL"); at != "" {
		killed(t, os.Getenv("CORACLE_QUEUE_DIR"), os.Getenv("CORACLE_QUEUE_NATS"), at)
		return
	}
	t.Run("file", func(t *testing.T) {
		killAtEach(t, func() string { return "" }, func(t *testing.T, dir string) Queues {
			l := open(t, dir, nil)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			return l
		})
	})
	t.Run("NATS", func(t *testing.T) {
		servers := startNATS(t, nil)
		stream := func() string {
			servers.fresh()
			return servers.id + " " + servers.context
		}
		killAtEach(t, stream, func(t *testing.T, _ string) Queues {
			h := servers.home(nil)
			h.until(t, "")
			t.Cleanup(func() {
				h.Discard(k)
				require.NoError(t, h.close())
			})
			return h
		})
	})
}

func killAtEach(t *testing.T, stream func() string, next func(t *testing.T, dir string) Queues) {
	for _, step := range []string{
		"before the transaction", "after the transaction", "accepted", "claimed", "acknowledged", "returned",
	} {
		for _, nth := range []int{1, 2, 5} {
			t.Run(fmt.Sprint(step, " ", nth), func(t *testing.T) {
				dir := t.TempDir()
				child := exec.Command(os.Args[0], "-test.run", "^TestKilled$")
				child.Env = append(os.Environ(), fmt.Sprintf("CORACLE_QUEUE_KILL=%d %s", nth, step),
					"CORACLE_QUEUE_DIR="+dir, "CORACLE_QUEUE_NATS="+stream())
				out, err := child.Output()
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit), "%v %s", err, out)
				require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "%s", out)
				var accepted []string
				ended := map[string]bool{}
				for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
					if id, ok := strings.CutPrefix(lines.Text(), "accepted "); ok {
						accepted = append(accepted, id)
					} else if id, ok := strings.CutPrefix(lines.Text(), "ended "); ok {
						ended[id] = true
					}
				}
				l := next(t, dir)
				place := map[string]int{}
				for i, m := range l.List(k, "", 0, 1000) {
					require.NotContains(t, place, m.ID)
					require.NotEqual(t, InFlight, m.State)
					found, ok := l.Find(k, m.ID)
					require.True(t, ok)
					require.Equal(t, "text "+m.ID, string(found.Payload))
					place[m.ID] = i
				}
				last := -1
				for _, id := range accepted {
					if i, ok := place[id]; ok {
						require.Greater(t, i, last)
						last = i
					} else {
						require.True(t, ended[id], "message %s was accepted and is lost", id)
					}
					repeats(t, l, named("other", "dedup "+id, true), id)
				}
			})
		}
	}
}

// killed works with a queue until it kills its own process when it reaches a step for the nth time.
func killed(t *testing.T, dir, stream, at string) {
	number, step, _ := strings.Cut(at, " ")
	left, err := strconv.Atoi(number)
	require.NoError(t, err)
	var mu sync.Mutex
	reach := func(here string) {
		mu.Lock()
		defer mu.Unlock()
		if left--; here != step {
			left++
		} else if left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	}
	id, context, inNATS := strings.Cut(stream, " ")
	l := open(t, dir, func(c *Config) {
		c.At = reach
		if inNATS {
			c.File, c.NATS = "", &NATS{Context: context}
		}
	})
	if inNATS {
		l.Place(k, id)
	}
	say := func(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
	for n := 0; ; n++ {
		id := fmt.Sprint(n)
		list := []Message{named(id, "dedup "+id, true), named(id+"b", "dedup "+id+"b", true)}
		if l.Append(k, many, list)()[0] != nil {
			continue
		}
		say("accepted %s", id)
		say("accepted %s", id+"b")
		reach("accepted")
		m, _ := l.Claim(k, "p")
		reach("claimed")
		say("ended %s", m.ID)
		l.Acknowledge(k, m.ID)
		reach("acknowledged")
		m, _ = l.Claim(k, "p")
		l.Return(k, m.ID, Result{Dead: n%2 == 0})
		reach("returned")
	}
}

// TestRememberedIDsAreBounded checks the bounds of remembered DedupIDs by number, time and the server's space.
func TestRememberedIDsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, t.TempDir(), func(c *Config) { c.Memory = 4 * maxEnded * overhead })
		end := func(from, to int, durable bool) {
			for i := from; i < to; i++ {
				m := named(fmt.Sprint(i), fmt.Sprint("dedup ", i), durable)
				m.Arrived = time.Now()
				add(t, l, m)
				claim(t, l, m.ID, "p")
				l.Acknowledge(k, m.ID)
			}
		}
		end(0, maxEnded+1, false)
		end(maxEnded+1, maxEnded+10, true)
		require.Equal(t, maxEnded, l.queues[k].ended.Len())
		add(t, l, named("0", "dedup 0", false))
		repeats(t, l, named("x", "dedup 10", false), "10")
		big := message("big", false)
		big.Payload = make([]byte, maxEnded*overhead*5/2)
		add(t, l, big)
		require.True(t, l.Withdraw(k, "big"))
		add(t, l, named("10", "dedup 10", false))
		time.Sleep(Window + 2*sweepEvery)
		synctest.Wait()
		l.mu.Lock()
		require.Zero(t, l.queues[k].ended.Len())
		l.mu.Unlock()
		add(t, l, named("y", "dedup 0", false))
		l.Purge(k, false, func(string) {})
		require.NoError(t, l.Close())
		require.NoFileExists(t, l.c.File)
	})
}

// TestRepetitionOfARefusedMessage checks that a repetition fails with the message whose write it waited for.
func TestRepetitionOfARefusedMessage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	l := open(t, "", func(c *Config) { c.File = filepath.Join(dir, "queues.db") })
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // a file in place of the directory
	errs := l.Append(k, many, []Message{named("1", "a", true), named("2", "a", true)})()
	require.Error(t, errs[0])
	require.Equal(t, errs[0], errs[1])
	require.NoError(t, os.Remove(dir))
	add(t, l, named("2", "a", true))
	repeats(t, l, named("3", "a", true), "2")
	require.NoError(t, l.Close())
}

// BenchmarkAppend measures durable messages of many senders, synced in a file, and acknowledged by one NATS server.
func BenchmarkAppend(b *testing.B) {
	servers := startNATS(b, nil)
	for _, senders := range []int{1, 32, 64, 256} {
		b.Run(fmt.Sprint("file-", senders), func(b *testing.B) {
			dir, err := os.MkdirTemp(os.Getenv("CORACLE_BENCH_DIR"), "queue")
			require.NoError(b, err)
			defer os.RemoveAll(dir)
			l := open(b, dir, nil)
			defer l.Close()
			appends(b, l, senders)
		})
		b.Run(fmt.Sprint("NATS-", senders), func(b *testing.B) {
			h := servers.home(nil)
			defer h.close()
			h.until(b, "")
			b.ResetTimer()
			appends(b, h.Local, senders)
			h.Discard(k)
		})
	}
}

func appends(b *testing.B, l *Local, senders int) {
	var n atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range senders {
		all.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				m := message(fmt.Sprint(i), true)
				if err := l.Append(k, Limits{100_000}, []Message{m})()[0]; err != nil {
					b.Error(err)
					return
				}
				if m, ok := l.Claim(k, "p"); ok {
					l.Acknowledge(k, m.ID)
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "messages/s")
}

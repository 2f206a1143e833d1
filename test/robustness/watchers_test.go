package robustness

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/test/history"
	"github.com/coracle-dev/coracle/test/host"
)

// disturbance is an action of a test on the server. It is repeated times times, after every writes each.
type disturbance struct {
	times, every int
	// do disturbs, and returns when the server answers again. It calls down before the server stops answering.
	do func(round int, down func())
}

// run lets the crowd write and read during the disturbances, and checks the history.
func (c *crowd) run(d disturbance) {
	ctx, stop := context.WithCancel(c.t.Context())
	defer stop()
	var writers, readers sync.WaitGroup
	for w := range crowdWriters {
		writers.Go(func() { c.write(ctx, w, (d.times+1)*d.every) })
	}
	for _, h := range habits {
		readers.Go(func() { c.follow(ctx, h) })
	}
	readers.Go(func() { c.readLists(ctx) })
	for round := range d.times {
		c.until(ctx, func() bool { return c.written >= (round+1)*d.every })
		closed := false
		d.do(round, func() { closed = true; c.gate.close() })
		if closed {
			c.gate.open()
		}
	}
	writers.Wait()
	last := history.State{ID: "last"}
	m, err := c.client().CoreV1().ConfigMaps(crowdNamespace).Create(ctx, configMap("last", last), metav1.CreateOptions{})
	require.NoError(c.t, err)
	end := revision(m.ResourceVersion)
	c.h.Writes["last"] = []history.Op{{State: last, Acknowledged: true, Revision: end}}
	require.True(c.t, c.until(ctx, func() bool { return c.told >= end && (c.known == 0 || c.known >= end) }))
	stop()
	readers.Wait()
	c.check()
}

func (c *crowd) check() {
	acknowledged, events, streamed := 0, 0, 0
	for _, ops := range c.h.Writes {
		for _, op := range ops {
			if op.Acknowledged {
				acknowledged++
			}
		}
	}
	for _, s := range c.h.Streams {
		events += len(s.Events)
		if s.Start == history.Streamed && slices.ContainsFunc(s.Events, func(e history.Event) bool { return e.End }) {
			streamed++
		}
	}
	c.t.Logf("%d writes, %d acknowledged; %d streams with %d events, %d cut by their client, %d that streamed a whole "+
		"list; %d lists, %d of an exact revision; %d times 410",
		c.written, acknowledged, len(c.h.Streams), events, c.cuts.Load(), streamed, len(c.h.Lists), c.exact.Load(),
		c.expired.Load())
	require.Positive(c.t, c.cuts.Load())
	require.Positive(c.t, streamed, "no watch got the bookmark after its initial events, so none of them was checked")
	require.Positive(c.t, c.exact.Load())
	require.NoError(c.t, errors.Join(c.h.Check()...))
}

// TestWatchersMissNothing kills the server while clients watch and list in all ways. After each kill, the clients
// must miss nothing and see nothing twice. With -short it kills twice.
func TestWatchersMissNothing(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	d := disturbance{times: 8, every: 4000}
	if testing.Short() {
		d = disturbance{times: 2, every: 300}
	}
	d.do = func(_ int, down func()) {
		pid := h.Status().PID
		down()
		h.KillAtOnce(pid)
		h.Run("start")
	}
	newCrowd(t, h.REST).run(d)
}

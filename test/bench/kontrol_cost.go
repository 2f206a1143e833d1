package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cost is what the processes of -pids take while nothing happens; heap is what was live, in MiB, after the last
// collection of the hub.
type cost struct{ heap, anonymous, pss, percent float64 }

// cost waits until collected memory is returned, and measures for the time of -idle, which should include a resync.
func (k *kontrolBench) cost(ctx context.Context, when string) (c cost, err error) {
	if k.options.pids == "" {
		return c, nil
	}
	pids, err := k.processes()
	if err != nil {
		return c, err
	}
	if k.children {
		pids = withChildren(pids)
	}
	if err := pause(ctx, k.options.settle); err != nil {
		return c, err
	}
	before, err := ticks(pids)
	if err != nil {
		return c, err
	}
	began := time.Now()
	if err := pause(ctx, k.options.idle); err != nil {
		return c, err
	}
	after, err := ticks(pids)
	if err != nil {
		return c, err
	}
	c.percent = float64(after-before) / userHZ / time.Since(began).Seconds() * 100
	for _, pid := range pids {
		anonymous, err := rollup(pid, "Anonymous:")
		if err != nil {
			return c, err
		}
		shared, err := rollup(pid, "Pss:")
		if err != nil {
			return c, err
		}
		c.anonymous += float64(anonymous) / 1024
		c.pss += float64(shared) / 1024
	}
	if c.heap, err = k.heap(ctx); err != nil {
		return c, err
	}
	k.add(figure{Name: "Kontrol: live heap " + when, Value: c.heap, Unit: "MiB"})
	k.add(figure{
		Name:  "Kontrol: memory " + when,
		Value: c.anonymous,
		Unit:  "MiB",
		Note:  fmt.Sprintf("%.0f MiB with files", c.pss),
	})
	return c, nil
}

// growth measures what Resources in sync cost.
func (k *kontrolBench) growth(ctx context.Context, before cost) error {
	if k.options.pids == "" {
		return nil
	}
	n := k.options.resources
	after, err := k.cost(ctx, fmt.Sprintf("with %d Resources in sync", n))
	if err != nil {
		return err
	}
	share := float64(n) / 10_000 // of 40 MB and of 1 % of a core
	k.add(figure{
		Name:   fmt.Sprintf("  %d Resources in sync: live heap", n),
		Value:  after.heap - before.heap,
		Unit:   "MiB",
		Budget: share * 40e6 / (1 << 20),
	})
	k.add(figure{
		Name:  "  memory",
		Value: after.anonymous - before.anonymous,
		Unit:  "MiB",
		Note:  fmt.Sprintf("%.0f MiB with files", after.pss-before.pss),
	})
	k.add(figure{
		Name:   "  CPU",
		Value:  after.percent - before.percent,
		Unit:   "% of a core",
		Budget: share,
		Note:   "over " + k.options.idle.String(),
	})
	return nil
}

// heap returns what was live on the hub's heap after its last collection, in MiB: by its metrics, from the size at
// which the next one begins.
func (k *kontrolBench) heap(ctx context.Context) (float64, error) {
	raw, err := k.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	next, err := metric(raw, "go_memstats_next_gc_bytes")
	if err != nil {
		return 0, err
	}
	percent, err := metric(raw, "go_gc_gogc_percent")
	if err != nil {
		return 0, err
	}
	return next / (1 + percent/100) / (1 << 20), nil
}

// metric returns the value of a metric without labels, in the text format.
func metric(text []byte, name string) (float64, error) {
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("the metrics have no %s", name)
}

// usage is the processor time that processes have used; known is false if one of them was gone, or there is none.
type usage struct {
	time.Duration
	known bool
}

// used is the processor time that hub, target and this process have used, each with its descendants, also those that
// have ended.
func (k *kontrolBench) used() (used [3]usage) {
	for i, list := range []string{k.options.pids, k.options.targetPids, strconv.Itoa(os.Getpid())} {
		if list == "" {
			continue
		}
		if pids, err := parsePIDs(list); err == nil {
			used[i] = usedBy(pids, k.children)
		}
	}
	return used
}

// readings is how often processor time is read at most until no process has ended meanwhile.
const readings = 10

// usedBy reads the processor time of processes, and of their descendants if so wished.
func usedBy(pids []int, descendants bool) usage {
	for range readings {
		all := pids
		if descendants {
			all = withChildren(pids)
		}
		total, gone := 0, false
		for _, pid := range all {
			own, ended, err := statTicks(pid)
			gone = gone || err != nil
			total += own
			if descendants {
				total += ended
			}
		}
		if !gone {
			return usage{time.Duration(total) * time.Second / userHZ, true}
		}
	}
	return usage{}
}

// per adds the processor time that one of n took since, which the load of the machine changes little.
func (k *kontrolBench) per(n int, what string, since [3]usage) {
	now := k.used()
	for i, who := range []string{"hub", "target", "bench"} {
		if now[i].known && since[i].known {
			k.add(figure{
				Name:  fmt.Sprintf("  processor time of the %s for each to %s", who, what),
				Value: float64(now[i].Duration-since[i].Duration) / float64(n) / float64(time.Millisecond),
				Unit:  "ms",
			})
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rollup returns a line of a process's memory, in KiB (proc(5), smaps_rollup).
func rollup(pid int, line string) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(l, line); ok {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
		}
	}
	return 0, fmt.Errorf("no %s of process %d", line, pid)
}

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cost is the idle cost of the processes of -pids: live heap of the hub after its last collection and memory in
// MiB, processor time in percent.
type cost struct{ heap, anonymous, pss, percent float64 }

// cost waits until collected memory is returned, then measures for the duration of -idle, which should include a
// resync.
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

func (k *kontrolBench) growth(ctx context.Context, before cost) error {
	if k.options.pids == "" {
		return nil
	}
	n := k.options.resources
	after, err := k.cost(ctx, fmt.Sprintf("with %d Resources in sync", n))
	if err != nil {
		return err
	}
	share := float64(n) / 10_000 // of 40 MB and 1 % of a core
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

// heap returns the hub's live heap after its last collection, in MiB. It derives it from the metric for the size at
// which the next collection begins.
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

// metric returns the value of a metric without labels in the text format.
func metric(text []byte, name string) (float64, error) {
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("the metrics have no %s", name)
}

// usage is the processor time that processes have used. known is false without processes or if one of them has ended.
type usage struct {
	time.Duration
	known bool
}

// used returns the processor time of hub, target and this process, each with all descendants, including ended ones.
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

// readings is how often usedBy reads processor times before it gives up because processes end meanwhile.
const readings = 10

// usedBy reads the processor time of processes, optionally with their descendants.
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

// per adds figures for the processor time of each of n operations since an earlier reading. Load changes it little.
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

// rollup returns a line of a process's smaps_rollup (proc(5)), in KiB.
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
	return 0, fmt.Errorf("process %[2]d: smaps_rollup has no line %[1]s", line, pid)
}

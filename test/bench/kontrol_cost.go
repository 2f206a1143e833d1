package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cost is what the processes of -pids take while nothing happens.
type cost struct{ anonymous, pss, percent float64 }

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
	k.add(figure{Name: "Kontrol: memory " + when, Value: c.anonymous, Unit: "MiB", Note: fmt.Sprintf("%.0f MiB with files", c.pss)})
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
	memory, cpu := 0.0, 0.0
	if n == 10_000 {
		memory, cpu = 40, 1
	}
	k.add(figure{Name: fmt.Sprintf("  %d Resources in sync", n), Value: after.anonymous - before.anonymous, Unit: "MiB", Budget: memory, Note: fmt.Sprintf("%.0f MiB with files", after.pss-before.pss)})
	k.add(figure{Name: "  CPU", Value: after.percent - before.percent, Unit: "% of a core", Budget: cpu, Note: "over " + k.options.idle.String()})
	return nil
}

// used is the processor time that hub, target and this process have used, each with its descendants; zeros for those that are not known.
func (k *kontrolBench) used() (used [3]time.Duration) {
	for i, list := range []string{k.options.pids, k.options.targetPids, strconv.Itoa(os.Getpid())} {
		if list == "" {
			continue
		}
		pids, err := parsePIDs(list)
		if err != nil {
			continue
		}
		if k.children {
			pids = withChildren(pids)
		}
		n, _ := ticks(pids)
		used[i] = time.Duration(n) * time.Second / userHZ
	}
	return used
}

// per adds the processor time that one of n took since, which the load of the machine changes little.
func (k *kontrolBench) per(n int, what string, since [3]time.Duration) {
	now := k.used()
	for i, who := range []string{"hub", "target", "bench"} {
		if now[i] > 0 {
			k.add(figure{Name: fmt.Sprintf("  processor time of the %s for each to %s", who, what), Value: float64(now[i]-since[i]) / float64(n) / float64(time.Millisecond), Unit: "ms"})
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

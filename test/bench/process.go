package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// idle measures the memory of the processes of -pids, and their processor time while idle.
func idle(ctx context.Context, c *cluster) ([]figure, error) {
	if c.options.pids == "" {
		return nil, nil
	}
	pids, err := c.processes()
	if err != nil {
		return nil, err
	}
	if c.children {
		pids = withChildren(pids)
	}
	before, err := ticks(pids)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	select {
	case <-time.After(c.options.idle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := ticks(pids)
	if err != nil {
		return nil, err
	}
	percent := float64(after-before) / userHZ / time.Since(began).Seconds() * 100
	var kib int
	for _, pid := range pids {
		n, err := rollup(pid, "Pss:")
		if err != nil {
			return nil, err
		}
		kib += n
	}
	note := fmt.Sprintf("%d processes", len(pids))
	return []figure{
		{Name: "memory when idle (PSS)", Value: float64(kib) / 1024, Unit: "MiB", Budget: 120, Note: note},
		{Name: "CPU when idle", Value: percent, Unit: "% of a core", Budget: 0.5, Note: "over " + c.options.idle.String()},
	}, nil
}

func (c *cluster) processes() (pids []int, err error) { return parsePIDs(c.options.pids) }

func parsePIDs(list string) (pids []int, err error) {
	for _, text := range strings.Split(list, ",") {
		pid, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("process IDs %q: %w", list, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// processorTime returns the processor time of the processes of -pids, of their descendants, and of this process;
// zeros without -pids. Ended processes do not count.
func (c *cluster) processorTime() (used [3]time.Duration) {
	pids, err := c.processes()
	if err != nil {
		return used
	}
	for i, list := range [][]int{pids, withChildren(pids), {os.Getpid()}} {
		for _, pid := range list {
			n, _, _ := statTicks(pid) // a process may end meanwhile
			used[i] += time.Duration(n) * time.Second / userHZ
		}
	}
	used[1] -= used[0]
	return used
}

// userHZ is the number of ticks in a second, the same on every Linux.
const userHZ = 100

func withChildren(pids []int) []int {
	seen := map[int]bool{}
	var all []int
	for len(pids) > 0 {
		pid := pids[0]
		pids = pids[1:]
		if seen[pid] {
			continue
		}
		seen[pid] = true
		all = append(all, pid)
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			data, _ := os.ReadFile(list)
			for _, text := range strings.Fields(string(data)) {
				if child, err := strconv.Atoi(text); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return all
}

func ticks(pids []int) (total int, err error) {
	for _, pid := range pids {
		own, _, err := statTicks(pid)
		if err != nil {
			return 0, err
		}
		total += own
	}
	return total, nil
}

func statTicks(pid int) (own, children int, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	return parseTicks(string(data))
}

// parseTicks reads the processor time of a process and of its ended children from a stat file (proc_pid_stat(5),
// fields 14 to 17). The second field, the name in parentheses, may contain any character.
func parseTicks(stat string) (own, children int, err error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0, 0, fmt.Errorf("malformed stat file: %q", stat)
	}
	var n [4]int
	for i := range n {
		if n[i], err = strconv.Atoi(fields[11+i]); err != nil {
			return 0, 0, err
		}
	}
	return n[0] + n[1], n[2] + n[3], nil
}

// spent returns the processor time of the processes of -pids and of their ended descendants; zeros without -pids.
func (c *cluster) spent() (own, ended time.Duration) {
	pids, _ := c.processes()
	for _, pid := range pids {
		n, children, _ := statTicks(pid)
		own += time.Duration(n) * time.Second / userHZ
		ended += time.Duration(children) * time.Second / userHZ
	}
	return own, ended
}

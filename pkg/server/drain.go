package server

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// drainMargin is the time a pod may need beyond its grace period, for killing its processes and removing its
	// network and volumes.
	drainMargin = 30 * time.Second
	// Stop first reports the pods that it waits for after waitingAfter, then every waitingEvery.
	waitingAfter = 5 * time.Second
	waitingEvery = 15 * time.Second
	waitingNames = 5
)

type podStopper interface {
	Pods() []*corev1.Pod
	StopPods(ctx context.Context, ended func(*corev1.Pod)) error
}

// stopPods terminates the node's pods gracefully and reports the pods that it waits for. It fails after the longest
// grace period plus drainMargin, so that a process stuck in the kernel does not prevent Coracle from stopping.
func stopPods(ctx context.Context, agent podStopper, progress func(string)) error {
	var mu sync.Mutex
	left := map[string]bool{}
	var longest time.Duration
	for _, p := range agent.Pods() {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		left[p.Namespace+"/"+p.Name] = true
		longest = max(longest, grace(p))
	}
	names := func() string {
		mu.Lock()
		defer mu.Unlock()
		list := slices.Sorted(maps.Keys(left))
		if more := len(list) - waitingNames; more > 0 {
			list = append(list[:waitingNames], fmt.Sprintf("and %d more", more))
		}
		return strings.Join(list, ", ")
	}
	// Reports by the agent and by this loop are serialized. No report follows the return of stopPods, because its
	// caller then closes the connection.
	var reporting sync.Mutex
	returned := false
	say := func(message string) {
		reporting.Lock()
		defer reporting.Unlock()
		if !returned {
			progress(message)
		}
	}
	defer func() {
		reporting.Lock()
		defer reporting.Unlock()
		returned = true
	}()
	limit := longest + drainMargin
	deadline := time.Now().Add(limit)
	drain, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- agent.StopPods(drain, func(p *corev1.Pod) {
			name := p.Namespace + "/" + p.Name
			mu.Lock()
			delete(left, name)
			mu.Unlock()
			say("stopped pod " + name)
		})
	}()
	report := time.NewTimer(waitingAfter)
	defer report.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil && drain.Err() != nil {
				return notStopped(names(), limit)
			}
			return err
		case <-drain.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return notStopped(names(), limit)
		case <-report.C:
			if waiting := names(); waiting != "" {
				say(fmt.Sprintf("waiting for %s (at most %s more)", waiting, time.Until(deadline).Round(time.Second)))
			}
			report.Reset(waitingEvery)
		}
	}
}

// excluded stops the pods of a machine whose Node was deleted: the cluster runs their replacements elsewhere.
func (p *process) excluded(ctx context.Context) {
	if p.node == nil {
		return
	}
	p.log.Warn("this machine is no longer a node of the cluster, stopping its pods")
	if err := stopPods(ctx, p.node.agent, func(m string) { p.log.Info(m) }); err != nil {
		p.log.Error("could not stop all pods", "error", err)
	}
}

func notStopped(names string, limit time.Duration) error {
	return fmt.Errorf("pods still running %s after termination was requested: %s; `coracle start` adopts them, `coracle "+
		"delete` kills them", limit, names)
}

func grace(p *corev1.Pod) time.Duration {
	var seconds int64
	for _, s := range []*int64{p.Spec.TerminationGracePeriodSeconds, p.DeletionGracePeriodSeconds} {
		if s != nil {
			seconds = max(seconds, *s)
		}
	}
	return time.Duration(min(seconds, math.MaxInt32)) * time.Second
}

// dumpStacks writes the stacks of all goroutines, grouped by stack.
func dumpStacks(w io.Writer) { _ = pprof.Lookup("goroutine").WriteTo(w, 1) }

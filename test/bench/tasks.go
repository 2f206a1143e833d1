package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

const taskPage = 500

type taskRun struct {
	*cluster
	ns string
	in dynamic.ResourceInterface
}

// taskFlow measures the throughput of tasks of `true` from the first creation to the last end, and the duration of
// a creation. Then it keeps many finished tasks, and measures the memory, lists of them, concurrent gets, and the
// throughput again. `go test -bench Reap ./pkg/node/runtime/containerd` measures the runtime alone.
func taskFlow(ctx context.Context, c *cluster) (figures []figure, err error) {
	if c.tasks == 0 { // it runs only on request
		return nil, nil
	}
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	err = c.within(ctx, func(ns string) error {
		r := taskRun{c, ns, client.Resource(tasks.GroupVersion.WithResource("tasks")).Namespace(ns)}
		if figures, err = r.flow(ctx, "first", ""); err != nil || c.finished == 0 {
			return err
		}
		if err := r.keep(ctx); err != nil {
			return err
		}
		lists, err := r.pages(ctx)
		if err != nil {
			return err
		}
		again, err := r.flow(ctx, "again", fmt.Sprintf(", beside %d finished", c.finished))
		figures = slices.Concat(figures, lists, again)
		return err
	})
	return figures, err
}

func (r taskRun) create(ctx context.Context, name string, suspend bool) (*unstructured.Unstructured, error) {
	return r.in.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": tasks.GroupVersion.String(), "kind": "Task", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"image": r.image, "args": []any{"true"}, "suspend": suspend},
	}}, metav1.CreateOptions{})
}

func (r taskRun) flow(ctx context.Context, prefix, beside string) ([]figure, error) {
	began, took := time.Now(), make([]time.Duration, r.tasks)
	server, containers := r.spent()
	// The watch begins at this task, so that it does not list earlier ones.
	first, err := r.create(ctx, prefix+"-begin", true)
	if err != nil {
		return nil, err
	}
	err = r.each(r.tasks, func(i int) error {
		at := time.Now()
		_, err := r.create(ctx, prefix+"-"+strconv.Itoa(i), false)
		took[i] = time.Since(at)
		return err
	})
	if err != nil {
		return nil, err
	}
	ended, failed := map[string]bool{}, 0
	err = follow(ctx, r.in.Watch, metav1.ListOptions{ResourceVersion: first.GetResourceVersion()},
		func(e watch.Event) bool {
			t, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				return false
			}
			phase, _, _ := unstructured.NestedString(t.Object, "status", "phase")
			if tasks.TaskPhase(phase).Ended() && !ended[t.GetName()] {
				ended[t.GetName()] = true
				if phase == string(tasks.TaskFailed) {
					failed++
				}
			}
			return len(ended) == r.tasks
		})
	if err != nil {
		return nil, err
	}
	if failed > 0 {
		return nil, fmt.Errorf("%d of %d tasks failed", failed, r.tasks)
	}
	rate := figure{
		Name:  fmt.Sprintf("%d tasks of true, end to end%s", r.tasks, beside),
		Value: float64(r.tasks) / time.Since(began).Seconds(),
		Unit:  "/s",
		More:  true,
	}
	if r.pids != "" {
		serverAfter, containersAfter := r.spent()
		each := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(r.tasks) }
		rate.Note = fmt.Sprintf("CPU ms each: server %.1f, containers and their shims %.1f", each(serverAfter-server),
			each(containersAfter-containers))
	}
	return []figure{
		rate,
		millis(fmt.Sprintf("creation of a task by %d writers%s, p50", r.writers, beside), percentile(took, 50), 0),
	}, nil
}

func (r taskRun) keep(ctx context.Context) error {
	return r.each(r.finished, func(i int) error {
		t, err := r.create(ctx, "kept-"+strconv.Itoa(i), true)
		if err != nil {
			return err
		}
		now := metav1.Now()
		// The status has the length of a real task's.
		code, node, pod, id := int32(0), "bench-node", fmt.Sprintf("%s-%.8s-1", t.GetName(), t.GetUID()), fmt.Sprintf(
			"containerd://%064x", i)
		status, err := json.Marshal(map[string]any{"status": tasks.TaskStatus{
			Phase: tasks.TaskCompleted, Node: node, PodName: pod, ContainerID: id, ExitCode: &code, CreatedAt: &now,
			ScheduledAt: &now, StartedAt: &now, FinishedAt: &now, EndedAttempts: 1,
			Attempts: []tasks.TaskAttempt{{
				Number: 1, Phase: tasks.TaskCompleted, Pod: pod, PodUID: uuid.NewUUID(), Node: node, ContainerID: id,
				ExitCode:  &code,
				CreatedAt: &now, ScheduledAt: &now, StartedAt: &now, FinishedAt: &now,
			}},
		}})
		if err != nil {
			return err
		}
		_, err = r.in.Patch(ctx, t.GetName(), "application/merge-patch+json", status, metav1.PatchOptions{}, "status")
		return err
	})
}

// pages lists all tasks while another client gets a ConfigMap repeatedly.
func (r taskRun) pages(ctx context.Context) ([]figure, error) {
	memory, err := r.resident("memory with them (RSS)")
	if err != nil && r.options.pids != "" {
		return nil, err
	}
	others, err := r.clients(1)
	if err != nil {
		return nil, err
	}
	if _, err := others[0].CoreV1().ConfigMaps(r.ns).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	beside := &gets{client: others[0], ns: r.ns}
	listing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for listing.Err() == nil && beside.err == nil {
			beside.one(ctx)
		}
	})
	began := time.Now()
	took, bytes, err := r.list(ctx)
	whole := time.Since(began)
	stop()
	running.Wait()
	if err = errors.Join(err, beside.err); err != nil {
		return nil, err
	}
	after, err := r.resident("memory after the list (RSS)")
	if err != nil && r.options.pids != "" {
		return nil, err
	}
	list := millis(fmt.Sprintf("%d finished tasks listed in %d pages", r.finished, len(took)), whole, 0)
	list.Note = fmt.Sprintf("%.1f KB of JSON each", float64(bytes)/1000/float64(r.finished))
	return []figure{
		memory, list, millis(fmt.Sprintf("a page of %d, p50", taskPage), percentile(took, 50), 0),
		millis("  the longest", percentile(took, 100), 0),
		millis("  a get meanwhile, p50", percentile(beside.took, 50), 0), millis("  p99", percentile(beside.took, 99), 10),
		after,
	}, nil
}

// list lists all tasks. It does not decode them, because client and cluster share the processors.
func (r taskRun) list(ctx context.Context) (took []time.Duration, bytes int, err error) {
	for next := ""; ; {
		began := time.Now()
		raw, err := r.client.CoreV1().RESTClient().Get().AbsPath("/apis", tasks.GroupVersion.String(), "namespaces", r.ns,
			"tasks").
			Param("limit", strconv.Itoa(taskPage)).Param("continue", next).SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err != nil {
			return took, bytes, err
		}
		took, bytes = append(took, time.Since(began)), bytes+len(raw)
		var head struct{ Metadata metav1.ListMeta }
		if err := json.Unmarshal(raw, &head); err != nil {
			return took, bytes, err
		}
		if next = head.Metadata.Continue; next == "" {
			return took, bytes, nil
		}
	}
}

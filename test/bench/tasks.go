package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// taskPage is the number of tasks in a page of a list.
const taskPage = 500

// taskFlow measures how many tasks of `true` per second go through the cluster, from the first creation to the last end, and how long lists
// take of tasks that have ended. What the runtime alone does is measured by `go test -bench Reap ./pkg/agent/runtime/containerd`.
func taskFlow(ctx context.Context, c *cluster) (figures []figure, err error) {
	if c.tasks == 0 { // not a part of the usual run
		return nil, nil
	}
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	err = c.within(ctx, func(ns string) error {
		in := client.Resource(tasks.GroupVersion.WithResource("tasks")).Namespace(ns)
		began := time.Now()
		create := func(i int, suspend bool) (*unstructured.Unstructured, error) {
			return in.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": tasks.GroupVersion.String(), "kind": "Task", "metadata": map[string]any{"name": "task-" + strconv.Itoa(i)},
				"spec": map[string]any{"image": c.image, "args": []any{"true"}, "suspend": suspend},
			}}, metav1.CreateOptions{})
		}
		created := c.each(c.tasks, func(i int) error {
			_, err := create(i, false)
			return err
		})
		if created != nil {
			return created
		}
		ended, failed := map[string]bool{}, 0
		err := follow(ctx, in.Watch, metav1.ListOptions{}, func(e watch.Event) bool {
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
			return len(ended) == c.tasks
		})
		if err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("%d of %d tasks failed", failed, c.tasks)
		}
		figures = append(figures, figure{Name: fmt.Sprintf("%d tasks of true, end to end", c.tasks), Value: float64(c.tasks) / time.Since(began).Seconds(), Unit: "/s", More: true})
		if c.finished == 0 {
			return nil
		}
		err = c.each(c.finished, func(i int) error {
			t, err := create(c.tasks+i, true)
			if err != nil {
				return err
			}
			now := metav1.Now()
			status, err := json.Marshal(map[string]any{"status": tasks.TaskStatus{Phase: tasks.TaskCompleted, CreatedAt: &now, FinishedAt: &now, EndedAttempts: 1}})
			if err != nil {
				return err
			}
			_, err = in.Patch(ctx, t.GetName(), "application/merge-patch+json", status, metav1.PatchOptions{}, "status")
			return err
		})
		if err != nil {
			return err
		}
		began = time.Now()
		longest, pages, o := time.Duration(0), 0, metav1.ListOptions{Limit: taskPage}
		for more := true; more; more = o.Continue != "" {
			at := time.Now()
			list, err := in.List(ctx, o)
			if err != nil {
				return err
			}
			longest, pages, o.Continue = max(longest, time.Since(at)), pages+1, list.GetContinue()
		}
		figures = append(figures, millis(fmt.Sprintf("%d finished tasks listed in %d pages", c.finished+c.tasks, pages), time.Since(began), 0),
			millis(fmt.Sprintf("the longest page of %d", taskPage), longest, 0))
		return nil
	})
	return figures, err
}

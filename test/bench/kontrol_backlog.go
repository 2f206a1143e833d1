package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func many(i int) string { return fmt.Sprintf("many-%05d", i) }

// backlog measures how fast Kontrol applies Resources that waited for a suspended cluster.
func (k *kontrolBench) backlog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*kontrolTime)
	defer cancel()
	n := k.options.resources
	resources, clusters := k.hub.Resource(kontrolKind("resources")), k.hub.Resource(kontrolKind("clusters"))
	suspend := func(yes bool) error {
		_, err := clusters.Patch(ctx, kontrolName, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, yes),
			metav1.PatchOptions{})
		return err
	}
	list, err := resources.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	all, err := events(ctx, resources.Watch, list.GetResourceVersion())
	if err != nil {
		return err
	}
	if err := suspend(true); err != nil {
		return err
	}
	began := time.Now()
	used := k.used()
	if err := inParallel(kontrolWriters, n, func(_, i int) error {
		_, err := resources.Create(ctx, desired(many(i), "Correct", "1"), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	k.add(figure{
		Name:  fmt.Sprintf("Kontrol: creates of %d Resources", n),
		Value: float64(n) / time.Since(began).Seconds(),
		Unit:  "/s",
		More:  true,
	})
	waiting := map[string]bool{}
	if err := await(ctx, all, func(e watch.Event) bool {
		u, ok := e.Object.(*unstructured.Unstructured)
		if ok && strings.HasPrefix(u.GetName(), "many-") {
			if state, _, _ := unstructured.NestedString(u.Object, "status", "state"); state != "" {
				waiting[u.GetName()] = true
			}
		}
		return len(waiting) == n
	}); err != nil {
		return err
	}
	k.per(n, "create and wait", used)
	maps, err := events(ctx, k.target.CoreV1().ConfigMaps(kontrolName).Watch, "")
	if err != nil {
		return err
	}
	began, used = time.Now(), k.used()
	if err := suspend(false); err != nil {
		return err
	}
	there := map[string]bool{}
	if err := await(ctx, maps, func(e watch.Event) bool {
		if m, ok := e.Object.(*corev1.ConfigMap); ok && strings.HasPrefix(m.Name, "many-") {
			there[m.Name] = true
		}
		return len(there) == n
	}); err != nil {
		return err
	}
	k.add(figure{
		Name:   fmt.Sprintf("Kontrol: applies to one target, a backlog of %d", n),
		Value:  float64(n) / time.Since(began).Seconds(),
		Unit:   "/s",
		Budget: 500,
		More:   true,
	})
	err = allSynced(ctx, all, n)
	k.per(n, "apply and sync", used)
	k.add(figure{Name: "  until all say Synced", Value: float64(n) / time.Since(began).Seconds(), Unit: "/s", More: true})
	return err
}

func allSynced(ctx context.Context, all <-chan watch.Event, n int) error {
	done := map[string]bool{}
	return await(ctx, all, func(e watch.Event) bool {
		if u, ok := e.Object.(*unstructured.Unstructured); ok && strings.HasPrefix(u.GetName(), "many-") && synced(e) {
			done[u.GetName()] = true
		}
		return len(done) == n
	})
}

// kubectl measures kubectl apply --server-side of the same objects, first new and then unchanged.
func (k *kontrolBench) kubectl(ctx context.Context) error {
	if k.options.kubectl == "" {
		return nil
	}
	n := k.options.resources
	file, err := os.CreateTemp("", "bench-*.json")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	out := json.NewEncoder(file)
	for i := range n {
		if err := out.Encode(configMap("kubectl-"+strconv.Itoa(i), "1")); err != nil {
			return err
		}
	}
	if err := file.Close(); err != nil {
		return err
	}
	words := append(strings.Fields(k.options.kubectl), "apply", "--server-side", "--kubeconfig", k.options.target, "-f",
		file.Name())
	for _, what := range []string{"new objects", "a resync"} {
		began, used := time.Now(), k.used()
		if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%.1000s", k.options.kubectl, err, out)
		}
		k.add(figure{
			Name:  fmt.Sprintf("kubectl apply --server-side of %d, %s", n, what),
			Value: float64(n) / time.Since(began).Seconds(),
			Unit:  "/s",
			More:  true,
		})
		k.per(n, "apply", used)
	}
	return nil
}

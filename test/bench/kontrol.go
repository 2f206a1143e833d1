package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	kontrolName    = "bench" // the name of the namespaces, the Secret and the Cluster
	kontrolRounds  = 40
	kontrolWriters = 16
	kontrolTime    = 5 * time.Minute // the maximum time of one measurement
)

func kontrolKind(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "kontrol.coracle.dev", Version: "v1alpha1", Resource: plural}
}

// kontrolBench is the hub cluster with the Resources, and the target cluster that they are applied to.
type kontrolBench struct {
	*cluster
	hub          dynamic.Interface
	target       kubernetes.Interface
	targetConfig *rest.Config
	figures      []figure
}

// kontrol measures Kontrol with -target as the target cluster, beside kubectl apply --server-side and a plain
// controller-runtime loop that apply the same objects to the same cluster. It does nothing without -target or on a
// cluster without Kontrol.
func kontrol(ctx context.Context, c *cluster) ([]figure, error) {
	if _, err := c.client.Discovery().ServerResourcesForGroupVersion("kontrol.coracle.dev/v1alpha1"); err != nil ||
		c.options.target == "" {
		return nil, nil //nolint:nilerr // another cluster
	}
	k := &kontrolBench{cluster: c}
	plain := rest.CopyConfig(c.config)
	plain.AcceptContentTypes, plain.ContentType = "", ""
	var err error
	if k.hub, err = dynamic.NewForConfig(plain); err != nil {
		return nil, err
	}
	if k.targetConfig, err = clientcmd.BuildConfigFromFlags("", c.options.target); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	k.targetConfig.QPS = -1
	if k.target, err = kubernetes.NewForConfig(k.targetConfig); err != nil {
		return nil, err
	}
	if err := k.prepare(ctx); err != nil {
		return nil, err
	}
	before, err := k.cost(ctx, "before there are Resources")
	for _, part := range []func(context.Context) error{k.latency, k.drift, k.backlog, k.kubectl, k.loop, k.plain} {
		if err == nil {
			err = part(ctx)
		}
	}
	if err == nil {
		err = k.growth(ctx, before)
	}
	return k.figures, errors.Join(err, k.cleanUp(context.WithoutCancel(ctx)))
}

func (k *kontrolBench) add(f figure) { k.figures = append(k.figures, f) }

// prepare registers the target as a Cluster, and waits until it is ready.
func (k *kontrolBench) prepare(ctx context.Context) error {
	kubeconfig, err := os.ReadFile(k.options.target)
	if err != nil {
		return err
	}
	for _, client := range []kubernetes.Interface{k.client, k.target} {
		if _, err := client.CoreV1().Namespaces().Create(ctx, namespace(kontrolName), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: kontrolName}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}
	if _, err := k.client.CoreV1().Secrets(kontrolName).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return err
	}
	clusters := k.hub.Resource(kontrolKind("clusters"))
	made, err := clusters.Create(ctx,
		object("Cluster", kontrolName, map[string]any{
			"kubeconfigSecret": map[string]any{"namespace": kontrolName, "name": kontrolName},
		}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return follow(ctx, clusters.Watch, metav1.ListOptions{ResourceVersion: made.GetResourceVersion()},
		func(e watch.Event) bool {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				return false
			}
			conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			for _, c := range conditions {
				if m, ok := c.(map[string]any); ok && m["type"] == "Ready" && m["status"] == "True" {
					return true
				}
			}
			return false
		})
}

func (k *kontrolBench) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kontrolTime)
	defer cancel()
	resources := k.hub.Resource(kontrolKind("resources"))
	// Orphan the objects: deleting their namespace removes them all at once.
	orphan := []byte(`{"spec":{"deletionPolicy":"Orphan"}}`)
	selected := metav1.ListOptions{LabelSelector: "bench"}
	list, err := resources.List(ctx, selected)
	if err != nil {
		return err
	}
	err = inParallel(kontrolWriters, len(list.Items), func(_, i int) error {
		_, err := resources.Patch(ctx, list.Items[i].GetName(), types.MergePatchType, orphan, metav1.PatchOptions{})
		return errors.Join(err, resources.Delete(ctx, list.Items[i].GetName(), metav1.DeleteOptions{}))
	})
	if err == nil {
		err = gone(ctx, resources, selected)
	}
	err = errors.Join(err, k.hub.Resource(kontrolKind("clusters")).Delete(ctx, kontrolName, metav1.DeleteOptions{}),
		k.remove(ctx, kontrolName))
	target := &cluster{options: k.options, client: k.target}
	return errors.Join(err, target.remove(ctx, kontrolName))
}

func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion("kontrol.coracle.dev/v1alpha1")
	u.SetKind(kind)
	u.SetName(name)
	u.SetLabels(map[string]string{"bench": "true"})
	return u
}

// configMap returns the object of a Resource: a ConfigMap with some settings and a few labels.
func configMap(name, value string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name":      name,
			"namespace": kontrolName,
			"labels":    map[string]any{"app": "bench", "tier": "front"},
		},
		"data": map[string]any{
			"settings": "log=info\nregion=eu-west\nreplicas=3\ncache=on\n",
			"value":    value,
			"url":      "https://" + name + ".example.com/",
		}}
}

func desired(name, mode, value string) *unstructured.Unstructured {
	return object("Resource", name, map[string]any{
		"clusterName": kontrolName,
		"mode":        mode,
		"template":    configMap(name, value),
	})
}

func await(ctx context.Context, all <-chan watch.Event, wanted func(watch.Event) bool) error {
	for {
		select {
		case e, ok := <-all:
			switch {
			case !ok:
				return errEnded
			case e.Type == watch.Error:
				return apierrors.FromObject(e.Object)
			case wanted(e):
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// synced reports whether an event shows a Resource in sync with its current generation.
func synced(e watch.Event) bool {
	u, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		return false
	}
	state, _, _ := unstructured.NestedString(u.Object, "status", "state")
	seen, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
	return state == "Synced" && seen == u.GetGeneration()
}

// latency measures the time from an edit of a Resource until the target has the change.
func (k *kontrolBench) latency(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kontrolTime)
	defer cancel()
	resources := k.hub.Resource(kontrolKind("resources"))
	made, err := resources.Create(ctx, desired("edited", "Correct", "0"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	states, err := events(ctx, resources.Watch, made.GetResourceVersion())
	if err != nil {
		return err
	}
	if err := await(ctx, states, synced); err != nil {
		return err
	}
	maps, err := events(ctx, k.target.CoreV1().ConfigMaps(kontrolName).Watch, "")
	if err != nil {
		return err
	}
	var applied, shown []time.Duration
	for i := 1; i <= kontrolRounds; i++ {
		value := strconv.Itoa(i)
		edit, err := json.Marshal(map[string]any{"spec": map[string]any{"template": configMap("edited", value)}})
		if err != nil {
			return err
		}
		began := time.Now()
		if _, err := resources.Patch(ctx, "edited", types.MergePatchType, edit, metav1.PatchOptions{}); err != nil {
			return err
		}
		if err := await(ctx, maps, func(e watch.Event) bool {
			m, ok := e.Object.(*corev1.ConfigMap)
			return ok && m.Data["value"] == value
		}); err != nil {
			return err
		}
		applied = append(applied, time.Since(began))
		if err := await(ctx, states, func(e watch.Event) bool {
			u, ok := e.Object.(*unstructured.Unstructured)
			return ok && u.GetGeneration() == int64(i)+1 && synced(e)
		}); err != nil {
			return err
		}
		shown = append(shown, time.Since(began))
	}
	k.add(millis("Kontrol: edit sent -> applied on the target, p50", percentile(applied, 50), 30))
	k.add(millis("  p99", percentile(applied, 99), 0))
	k.add(millis("  -> the Resource says Synced, p50", percentile(shown, 50), 0))
	return nil
}

// drift measures the time from a change on the target until the hub reports it.
func (k *kontrolBench) drift(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kontrolTime)
	defer cancel()
	resources, current := k.hub.Resource(kontrolKind("resources")), k.hub.Resource(kontrolKind("currentstates"))
	made, err := resources.Create(ctx, desired("drifting", "Report", "as desired"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	states, err := events(ctx, resources.Watch, made.GetResourceVersion())
	if err != nil {
		return err
	}
	if err := await(ctx, states, func(e watch.Event) bool {
		u, ok := e.Object.(*unstructured.Unstructured)
		return ok && u.GetName() == "drifting" && synced(e)
	}); err != nil {
		return err
	}
	seen, err := events(ctx, current.Watch, "")
	if err != nil {
		return err
	}
	maps := k.target.CoreV1().ConfigMaps(kontrolName)
	change := func(value string, drifted bool) (time.Duration, error) {
		began := time.Now()
		if _, err := maps.Patch(ctx, "drifting", types.MergePatchType, fmt.Appendf(nil, `{"data":{"value":%q}}`, value),
			metav1.PatchOptions{FieldManager: "bench"}); err != nil {
			return 0, err
		}
		err := await(ctx, seen, func(e watch.Event) bool {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok || u.GetName() != "drifting."+kontrolName {
				return false
			}
			count, _, _ := unstructured.NestedInt64(u.Object, "state", "driftCount")
			return count > 0 == drifted
		})
		return time.Since(began), err
	}
	var took []time.Duration
	for i := range kontrolRounds {
		d, err := change("by hand "+strconv.Itoa(i), true)
		if err != nil {
			return err
		}
		took = append(took, d)
		if _, err := change("as desired", false); err != nil {
			return err
		}
	}
	k.add(millis("Kontrol: change on the target sent -> drift reported, p50", percentile(took, 50), 30))
	k.add(millis("  p99", percentile(took, 99), 0))
	return nil
}

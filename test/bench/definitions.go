package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const definitionTimeout = 10 * time.Minute

// manyDefinitions creates CustomResourceDefinitions, waits until all are Established, and measures the memory that
// they cost.
func manyDefinitions(ctx context.Context, c *cluster) (figures []figure, err error) {
	if c.options.definitions == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	config := rest.CopyConfig(c.config)
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	all := client.Resource(definitions)
	group := fmt.Sprintf("bench-%d.example.org", time.Now().UnixNano())
	mine := metav1.ListOptions{LabelSelector: benchLabel + "=" + group}
	w, err := all.Watch(ctx, mine)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	before, err := c.memory()
	if err != nil {
		return nil, err
	}
	size, began := 0, time.Now()
	created := make([]time.Time, c.options.definitions)
	making := make(chan error, 1)
	go func() {
		making <- c.each(c.options.definitions, func(i int) error {
			u := manyOf(group, i, c.definitionSize<<10)
			if i == 0 {
				raw, _ := json.Marshal(u.Object)
				size = len(raw)
			}
			created[i] = time.Now()
			_, err := all.Create(ctx, u, metav1.CreateOptions{})
			return err
		})
	}()
	defer func() {
		if c.keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), definitionTimeout)
		defer cancel()
		err = errors.Join(err, all.DeleteCollection(ctx, metav1.DeleteOptions{}, mine))
	}()
	established, err := allEstablished(ctx, w, making, c.options.definitions)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	var each []time.Duration
	for i, at := range created {
		each = append(each, established[plural(i)+"."+group].Sub(at))
	}
	what := fmt.Sprintf("%d definitions of %d KB", c.options.definitions, size>>10)
	figures = append(figures, figure{Name: what + ", all established", Value: took.Seconds(), Unit: "s"},
		millis("create -> Established, p50", percentile(each, 50), 0),
		millis("create -> Established, p99", percentile(each, 99), 0))
	if before == (memory{}) {
		return figures, nil
	}
	select { // wait until the collector has returned memory
	case <-time.After(c.settle):
	case <-ctx.Done():
	}
	after, err := c.memory()
	f := figure{Name: "memory that they cost (RSS)", Value: float64(after.rss-before.rss) / 1024, Unit: "MiB"}
	if c.options.definitions == 1000 {
		f.Budget = 200
	}
	return append(figures, f, figure{Name: "the same, PSS", Value: float64(after.pss-before.pss) / 1024, Unit: "MiB"}), err
}

// allEstablished returns when each of n definitions was Established. It waits for making, too.
func allEstablished(ctx context.Context, w watch.Interface, making <-chan error, n int) (map[string]time.Time, error) {
	established := map[string]time.Time{}
	for making != nil || len(established) < n {
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				return nil, errors.New("the watch of the definitions ended")
			}
			if u, ok := e.Object.(*unstructured.Unstructured); ok && isEstablished(u) {
				if _, seen := established[u.GetName()]; !seen {
					established[u.GetName()] = time.Now()
				}
			}
		case err := <-making:
			if err != nil {
				return nil, err
			}
			making = nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d definitions are established: %w", len(established), n,
				ctx.Err())
		}
	}
	return established, nil
}

// memory is the memory of the processes of -pids, in KiB.
type memory struct{ rss, pss int }

func (c *cluster) memory() (m memory, err error) {
	if c.options.pids == "" {
		return m, nil
	}
	pids, err := c.processes()
	if err != nil {
		return m, err
	}
	for _, pid := range pids {
		rss, err := rollup(pid, "Rss:")
		if err != nil {
			return m, err
		}
		pss, err := rollup(pid, "Pss:")
		if err != nil {
			return m, err
		}
		m.rss, m.pss = m.rss+rss, m.pss+pss
	}
	return m, nil
}

func isEstablished(u *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}

func plural(i int) string { return "things" + strconv.Itoa(i) }

// manyOf returns definition number n, of about size bytes, in the style of controller-gen: nested objects, lists
// and maps with descriptions. No two definitions have the same descriptions.
func manyOf(group string, n, size int) *unstructured.Unstructured {
	properties := map[string]any{}
	for i, used := 0, 0; used < size; i++ {
		one := section(n, i)
		raw, _ := json.Marshal(one)
		used += len(raw) + 16
		properties["section"+strconv.Itoa(i)] = one
	}
	condition := map[string]any{"type": "object", "required": []any{"type", "status"}, "properties": map[string]any{
		"type":   map[string]any{"type": "string", "maxLength": int64(316)},
		"status": map[string]any{"type": "string", "enum": []any{"True", "False", "Unknown"}},
		"reason": map[string]any{"type": "string"}, "message": map[string]any{"type": "string"},
		"lastTransitionTime": map[string]any{"type": "string", "format": "date-time"}}}
	kind := "Thing" + strconv.Itoa(n)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural(n) + "." + group, "labels": map[string]any{benchLabel: group}},
		"spec": map[string]any{"group": group, "scope": "Namespaced",
			"names": map[string]any{
				"plural":   plural(n),
				"singular": strings.ToLower(kind),
				"kind":     kind,
				"listKind": kind + "List",
			},
			"versions": []any{
				map[string]any{
					"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
						"spec": map[string]any{"type": "object", "properties": properties},
						"status": map[string]any{
							"type":       "object",
							"properties": map[string]any{"conditions": map[string]any{"type": "array", "items": condition}},
						}}}},
				},
			}}}}
}

// section returns one part of a schema, of about 2 KB.
func section(n, i int) map[string]any {
	about := func(what string) string {
		return fmt.Sprintf("%s of part %d of thing %d: what a controller is to do with it, what it must not do, and what "+
			"happens if it is empty.", what, i, n)
	}
	text := func(what string) map[string]any { return map[string]any{"type": "string", "description": about(what)} }
	return map[string]any{
		"type": "object", "description": about("Section"), "required": []any{"name"}, "properties": map[string]any{
			"name": map[string]any{
				"type":        "string",
				"description": about("Name"),
				"minLength":   int64(1),
				"maxLength":   int64(253),
			},
			"mode": map[string]any{
				"type":        "string",
				"description": about("Mode"),
				"enum":        []any{"Auto", "Manual"},
				"default":     "Auto",
			},
			"port": map[string]any{
				"description":                about("Port"),
				"x-kubernetes-int-or-string": true,
				"anyOf":                      []any{map[string]any{"type": "integer"}, map[string]any{"type": "string"}},
			},
			"replicas": map[string]any{
				"type":        "integer",
				"format":      "int32",
				"description": about("Replicas"),
				"minimum":     int64(0),
			},
			"labels": map[string]any{
				"type":                 "object",
				"description":          about("Labels"),
				"additionalProperties": map[string]any{"type": "string"},
			},
			"refs": map[string]any{
				"type": "array", "description": about("References"), "maxItems": int64(16),
				"items": map[string]any{"type": "object", "properties": map[string]any{
					"kind": text("Kind"), "name": text("Name"), "namespace": text("Namespace"), "key": text("Key"),
					"optional": map[string]any{"type": "boolean", "description": about("Optional")}}},
			},
		},
	}
}

package customresources

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// largeDefinition returns the n-th definition, with a schema of about size bytes in controller-gen's style.
func largeDefinition(t testing.TB, n, size int) *apiextensionsv1.CustomResourceDefinition {
	properties := map[string]any{}
	for i, used := 0, 0; used < size; i++ {
		part := map[string]any{"type": "object", "required": []string{"name"}, "properties": map[string]any{}}
		for _, name := range []string{"name", "mode", "reference", "secret", "namespace"} {
			part["properties"].(map[string]any)[name] = map[string]any{"type": "string", "maxLength": 253,
				"description": fmt.Sprintf("The %s of part %d of thing %d: what a controller is to do with it, and what happens "+
					"if it is empty.", name, i, n)}
		}
		raw, err := json.Marshal(part)
		require.NoError(t, err)
		used += len(raw)
		properties["part"+strconv.Itoa(i)] = part
	}
	schema, err := json.Marshal(map[string]any{
		"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": properties}},
	})
	require.NoError(t, err)
	var crd apiextensionsv1.CustomResourceDefinition
	require.NoError(t,
		yaml.Unmarshal([]byte(strings.NewReplacer("COUNT", strconv.Itoa(n), "SCHEMA", string(schema)).Replace(`
metadata: {name: thingsCOUNT.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: thingsCOUNT, kind: ThingCOUNT}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: SCHEMA}}]
`)), &crd))
	return &crd
}

// BenchmarkEstablish creates definitions of 24 KB from 16 goroutines until all are established. An operation is one
// definition. Compare few and many (-benchtime 200x, 1000x).
func BenchmarkEstablish(b *testing.B) {
	w := newWorld(b, b.TempDir())
	all := make([]*apiextensionsv1.CustomResourceDefinition, b.N)
	for i := range all {
		all[i] = largeDefinition(b, i, 24<<10)
	}
	events, err := w.client.Watch(b.Context(), &apiextensionsv1.CustomResourceDefinitionList{})
	require.NoError(b, err)
	defer events.Stop()
	cpu := processor(b)
	b.ResetTimer()
	var next atomic.Int64
	var writing errgroup.Group
	for range 16 {
		writing.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(all)); i = next.Add(1) - 1 {
				if err := w.client.Create(b.Context(), all[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	established := map[string]bool{}
	for len(established) < b.N {
		e, ok := <-events.ResultChan()
		require.True(b, ok)
		if crd, is := e.Object.(*apiextensionsv1.CustomResourceDefinition); is &&
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			established[crd.Name] = true
		}
	}
	require.NoError(b, writing.Wait())
	b.StopTimer()
	b.ReportMetric(float64((processor(b)-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// processor returns the CPU time that this process has used.
func processor(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCreate creates custom resources, and for comparison objects of a built-in kind, over HTTP and one at a
// time.
func BenchmarkCreate(b *testing.B) {
	w := newWorld(b, b.TempDir())
	w.namespace("default")
	w.define(`
metadata: {name: widgets.bench.example.com}
spec:
  group: bench.example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties: {size: {type: integer, minimum: 0}, color: {type: string}, parts: {type: array, items: {type: string}}, shape: {type: string, default: round}}
`)
	n := 0
	for name, c := range map[string]struct{ path, body string }{
		"configmaps": {
			"/api/v1/namespaces/default/configmaps",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME","labels":{"app":"bench"}},"data":{"size":"7","color":"red","parts":"a wheel, another wheel, an axle"}}`,
		},
		"widgets": {"/apis/bench.example.com/v1/namespaces/default/widgets",
			`{"apiVersion":"bench.example.com/v1","kind":"Widget","metadata":{"name":"NAME","labels":{"app":"bench"}},"spec":{"size":7,"color":"red","parts":["a wheel","another wheel","an axle"]}}`},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := processor(b)
			for b.Loop() {
				n++
				r := w.do("POST", c.path, strings.Replace(c.body, "NAME", "o-"+strconv.Itoa(n), 1), "Content-Type",
					"application/json")
				require.Equal(b, 201, r.code, r.body)
			}
			b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

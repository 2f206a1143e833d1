package registry

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/payload"
)

func spent(f func()) (bytes int64, cpu time.Duration) {
	var before, after runtime.MemStats
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := used()
	f()
	cpu = used() - began
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), cpu
}

func repeated(head, unit, tail string) string {
	n := (maxPatchBytes - len(head) - len(tail)) / (len(unit) + 1)
	return head + strings.TrimSuffix(strings.Repeat(unit+",", n), ",") + tail
}

func numbered(head, format, tail string, n int) string {
	var b strings.Builder
	b.WriteString(head)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String() + tail
}

// cheap checks the cost of a request. It does nothing under the race detector, which multiplies the cost and also
// enables the cache's hash checks; hack/test.sh runs these tests without it too.
func cheap(t *testing.T, bytes int64, cpu time.Duration) {
	t.Helper()
	if raceDetector {
		return
	}
	require.Less(t, bytes, int64(400<<20), "allocated in all, most of it garbage at once")
	require.Less(t, cpu, 30*time.Second, "a second on a quiet machine")
}

// Hostile bodies of at most 3 MiB are refused or served with bounded memory and time.
func TestHostilePatchesAreCheap(t *testing.T) {
	h := build(t)
	big := strings.Repeat("x", 700<<10)
	put(h, v1("ConfigMap", ""), configMap("big", "k", big))
	put(h, v1("ConfigMap", ""), configMap("small", "k", "v"))
	put(h, v1("Pod", ""), smallPod("p"))
	put(h, v1("Service", ""), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	task := &tasks.Task{}
	task.Name, task.Namespace, task.Spec.Image = "t", "work", "i"
	put(h, at(tasks.GroupVersion.WithKind("Task"), "work", ""), task)

	deep := func(n int, in string) string { return strings.Repeat(`{"a":`, n) + in + strings.Repeat("}", n) }
	cmHead := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: small}\ndata:\n"
	json1 := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"small"},"data":{`
	for name, c := range map[string]struct {
		target Target
		kind   types.PatchType
		body   string
		code   int32 // 0 if it may succeed
	}{
		"copies of a large value": {v1("ConfigMap", "big"), types.JSONPatchType,
			numbered("[", `{"op":"copy","from":"/data/k","path":"/data/k%d"}`, "]", 4000), 422},
		"copies that double": {v1("ConfigMap", "small"), types.JSONPatchType,
			numbered("[", `{"op":"copy","from":"/data","path":"/data/k%d"}`, "]", 4000), 422},
		"a value in a deep path": {v1("ConfigMap", "small"), types.JSONPatchType,
			`[{"op":"add","path":"/data/x","value":` + deep(120, `"`+strings.Repeat("y", 2<<20)+`"`) +
				`},{"op":"add","path":"/data/x` + strings.Repeat("/a", 119) + `","value":1}]`, 413},
		"very deep": {v1("ConfigMap", "small"), types.JSONPatchType,
			`[{"op":"add","path":"/data/x","value":` + deep(5000, "1") + `}]`, 413},
		"a long path": {v1("ConfigMap", "small"), types.JSONPatchType,
			`[{"op":"add","path":"` + strings.Repeat("/a", 1<<19) + `","value":1}]`, 413},
		"the front of a long list": {v1("ConfigMap", "small"), types.JSONPatchType,
			`[{"op":"add","path":"/data/x","value":[` + strings.Repeat("0,", 19_000) + `0]},` +
				strings.TrimPrefix(numbered("[", `{"op":"add","path":"/data/x/0","value":%d}`, "]", 9000), "["), 413},
		"empty operations": {v1("ConfigMap", "small"), types.JSONPatchType, repeated("[", "{}", "]"), 413},
		"merge, deep":      {v1("ConfigMap", "small"), types.MergePatchType, deep(9000, "1"), 413},
		"merge, deep, big": {
			v1("ConfigMap", "small"), types.MergePatchType, deep(100, `"`+strings.Repeat("y", 2<<20)+`"`), 413,
		},
		"merge, containers": {v1("Pod", "p"), types.MergePatchType, repeated(`{"spec":{"containers":[`, "{}", "]}}"), 413},
		"merge, maps":       {v1("Pod", "p"), types.MergePatchType, repeated(`{"x":[`, `{"":0}`, "]}"), 413},
		"merge, a quantity": {v1("Pod", "p"), types.MergePatchType,
			`{"spec":{"overhead":{"cpu":"` + strings.Repeat("9", 2<<20) + `"}}}`, 413},
		"merge, labels": {v1("Pod", "p"), types.MergePatchType,
			numbered(`{"metadata":{"labels":{`, `"%d":""`, "}}}", 49_000), 0},
		"strategic, ports": {v1("Service", "s"), types.StrategicMergePatchType,
			numbered(`{"spec":{"ports":[`, `{"port":%d}`, "]}}", 19_000), 413},
		"strategic, some ports": {v1("Service", "s"), types.StrategicMergePatchType,
			numbered(`{"spec":{"ports":[`, `{"port":%d}`, "]}}", 3000), 0},
		"strategic, order": {v1("Service", "s"), types.StrategicMergePatchType,
			numbered(`{"spec":{"$setElementOrder/ports":[`, `{"port":%d}`, "]}}", 19_000), 413},
		"strategic, finalizers": {v1("Service", "s"), types.StrategicMergePatchType,
			numbered(`{"metadata":{"finalizers":[`, `"a/%d"`, "]}}", 19_000), 413},
		"strategic, a quantity": {v1("Pod", "p"), types.StrategicMergePatchType,
			`{"spec":{"overhead":{"cpu":"` + strings.Repeat("9", 2<<20) + `"}}}`, 413},
		"strategic, deep": {v1("Pod", "p"), types.StrategicMergePatchType, deep(9000, "1"), 413},
		"apply, aliases": {v1("ConfigMap", "small"), types.ApplyPatchType,
			cmHead + "  a: &a " + strings.Repeat("x", 1<<20) + "\n  b: [*a, *a, *a, *a]\n", 413},
		"apply, deep":      {v1("ConfigMap", "small"), types.ApplyPatchType, deep(9000, "1"), 413},
		"apply, deep YAML": {v1("ConfigMap", "small"), types.ApplyPatchType, strings.Repeat("- ", 9000) + "1", 413},
		"apply, keys":      {v1("ConfigMap", "small"), types.ApplyPatchType, numbered(json1, `"%d":""`, "}}", 49_000), 413},
		"apply, some keys": {v1("ConfigMap", "small"), types.ApplyPatchType, numbered(json1, `"%d":""`, "}}", 7900), 0},
		"apply, keys that come twice": {v1("ConfigMap", "small"), types.ApplyPatchType,
			numbered(json1, `"a":"%d"`, "}}", 11_000), 0},
		"own kind, deep": {at(tasks.GroupVersion.WithKind("Task"), "work", "t"), types.MergePatchType, deep(200, "1"), 413},
	} {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(c.body), maxPatchBytes)
			o := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
			if c.kind == types.ApplyPatchType {
				o.FieldManager = "me"
				o.Force = ptr(true)
			}
			var err error
			bytes, cpu := spent(func() { _, err = h.Patch(h.ctx, c.target, c.kind, []byte(c.body), o) })
			t.Logf("%d MiB, %s: %.150v", bytes>>20, cpu, err)
			if c.code != 0 {
				requireStatus(t, err, c.code)
				out, _ := json.Marshal(err.(apierrors.APIStatus).Status()) //nolint:errorlint // checked above
				require.Less(t, len(out), 4<<20)
			}
			cheap(t, bytes, cpu)
		})
	}
}

// Objects at the limits of decoding are validated and refused with bounded memory and time too.
func TestHostileCreatesAreCheap(t *testing.T) {
	h := build(t)
	pod := `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}],`
	for name, c := range map[string]struct {
		target Target
		body   string
	}{
		"ports": {
			v1("Service", ""), numbered(`{"metadata":{"name":"x"},"spec":{"ports":[`, `{"port":%d}`, "]}}", 11_000),
		},
		"containers": {
			v1("Pod", ""), numbered(`{"metadata":{"name":"x"},"spec":{"containers":[`, `{"name":"c%d"}`, "]}}", 11_000),
		},
		"empty containers": {
			v1("Pod", ""),
			strings.Replace(numbered(`{"spec":{"containers":[`, `{%d}`, "]}}", 0), "[]",
				"["+strings.TrimSuffix(strings.Repeat("{},", 11_000), ",")+"]", 1),
		},
		"ports of a pod": {
			v1("Pod", ""),
			numbered(`{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i","ports":[`,
				`{"hostPort":1,"containerPort":%d}`, "]}]}}", 11_000),
		},
		"env": {
			v1("Pod", ""),
			numbered(`{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i","env":[`, `{"name":"a-%d$"}`,
				"]}]}}", 11_000),
		},
		"mounts": {
			v1("Pod", ""),
			numbered(`{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i","volumeMounts":[`,
				`{"name":"v","mountPath":"/a%d"}`, "]}]}}", 11_000),
		},
		"spread": {
			v1("Pod", ""),
			numbered(pod+`"topologySpreadConstraints":[`, `{"topologyKey":"%d","maxSkew":1,"whenUnsatisfiable":"DoNotSchedule"}`,
				"]}}", 11_000),
		},
		"tolerations": {
			v1("Pod", ""), numbered(pod+`"tolerations":[`, `{"key":"%d","operator":"Exists"}`, "]}}", 11_000),
		},
		"volumes": {v1("Pod", ""), numbered(pod+`"volumes":[`, `{"name":"v%d"}`, "]}}", 11_000)},
		"gates":   {v1("Pod", ""), numbered(pod+`"schedulingGates":[`, `{"name":"v%d"}`, "]}}", 11_000)},
		"aliases": {v1("Pod", ""), numbered(pod+`"hostAliases":[`, `{"ip":"%d"}`, "]}}", 11_000)},
		"taints": {
			v1("Node", ""),
			numbered(`{"metadata":{"name":"x"},"spec":{"taints":[`, `{"key":"a%d","effect":"NoSchedule"}`, "]}}", 11_000),
		},
		"owners": {
			v1("ConfigMap", ""),
			numbered(`{"metadata":{"name":"x","ownerReferences":[`, `{"apiVersion":"v1","kind":"Pod","name":"a%d","uid":"a"}`,
				"]}}", 11_000),
		},
		"finalizers": {
			v1("ConfigMap", ""), numbered(`{"metadata":{"name":"x","finalizers":[`, `"a/a%d"`, "]}}", 11_000),
		},
		"keys": {v1("ConfigMap", ""), numbered(`{"metadata":{"name":"x"},"data":{`, `"%d":""`, "}}", 49_000)},
		"limits": {
			v1("LimitRange", ""), numbered(`{"metadata":{"name":"x"},"spec":{"limits":[`, `{"type":"a%d"}`, "]}}", 11_000),
		},
	} {
		t.Run(name, func(t *testing.T) {
			obj := c.target.Resource.New()
			require.LessOrEqual(t, len(c.body), maxPatchBytes)
			require.NoError(t, payload.Check([]byte(c.body), obj))
			require.NoError(t, json.Unmarshal([]byte(c.body), obj))
			var err error
			bytes, cpu := spent(func() {
				_, err = h.Create(h.ctx, c.target, obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			})
			t.Logf("%d MiB, %s: %.150v", bytes>>20, cpu, err)
			cheap(t, bytes, cpu)
			if err != nil {
				out, _ := json.Marshal(err.(apierrors.APIStatus).Status()) //nolint:errorlint // the registry's own promise
				require.Less(t, len(out), 1<<20)
			}
		})
	}
}

func TestLongSelectorsAndTokensAreRefused(t *testing.T) {
	h := build(t)
	for name, o := range map[string]metav1.ListOptions{
		"long":       {LabelSelector: "a in (" + strings.Repeat("b,", maxSelectorBytes) + "c)"},
		"many terms": {LabelSelector: strings.Repeat("!a,", maxSelectorTerms) + "!b"},
		"fields":     {FieldSelector: strings.Repeat("metadata.name!=a,", maxSelectorBytes/10)},
		"token":      {Continue: strings.Repeat("a", maxContinueBytes+1)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.List(h.ctx, v1("ConfigMap", ""), o)
			requireStatus(t, err, 400)
		})
	}
	many := "a in (" + strings.Repeat("b,", 5000) + "c)"
	_, err := h.List(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{LabelSelector: many})
	require.NoError(t, err, "one requirement may have many values")
}

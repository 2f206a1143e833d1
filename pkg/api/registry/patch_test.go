package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/warning"
	"pgregory.net/rapid"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func TestPatch(t *testing.T) {
	h := build(t)
	put(h, v1("Pod", ""), smallPod("p"))
	put(h, v1("ConfigMap", ""), configMap("a", "k", "1"))
	task := &tasks.Task{}
	task.Name, task.Namespace, task.Spec.Image = "t", "work", "i"
	put(h, at(tasks.GroupVersion.WithKind("Task"), "work", ""), task)
	strict := metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}
	tooMany := "[" +
		strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, maxOperations+1), ",") + "]"
	for name, c := range map[string]struct {
		target Target
		kind   types.PatchType
		data   string
		o      metav1.PatchOptions
		code   int32
		words  []string
	}{
		"json": {
			v1("ConfigMap", "a"),
			types.JSONPatchType,
			`[{"op":"replace","path":"/data/k","value":"2"}]`,
			metav1.PatchOptions{},
			0,
			[]string{`"k":"2"`},
		},
		"merge": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{"data":{"k":null,"l":"3"}}`,
			metav1.PatchOptions{},
			0,
			[]string{`{"l":"3"}`},
		},
		"strategic": {
			v1("Pod", "p"),
			types.StrategicMergePatchType,
			`{"spec":{"containers":[{"name":"c","image":"j"}]}}`,
			metav1.PatchOptions{},
			0,
			[]string{`"image":"j"`},
		},
		"bad json": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{`,
			metav1.PatchOptions{},
			400,
			[]string{"error decoding patch"},
		},
		"no patch": {v1("ConfigMap", "a"), types.JSONPatchType, `{}`, metav1.PatchOptions{}, 400, nil},
		"failed test": {
			v1("ConfigMap", "a"),
			types.JSONPatchType,
			`[{"op":"test","path":"/data/k","value":"x"}]`,
			metav1.PatchOptions{},
			422,
			nil,
		},
		"no such path": {
			v1("ConfigMap", "a"),
			types.JSONPatchType,
			`[{"op":"remove","path":"/data/none/x"}]`,
			metav1.PatchOptions{},
			422,
			nil,
		},
		"wrong type": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{"data":5}`,
			metav1.PatchOptions{},
			422,
			[]string{"patch: Invalid value"},
		},
		"invalid result": {
			v1("Pod", "p"),
			types.MergePatchType,
			`{"spec":{"restartPolicy":"Sometimes"}}`,
			metav1.PatchOptions{},
			422,
			[]string{"spec: Forbidden: pod updates may not change fields"},
		},
		"unknown field": {
			v1("ConfigMap", "a"), types.MergePatchType, `{"dota":{}}`, strict, 422, []string{`unknown field "dota"`},
		},
		"unknown, smp": {
			v1("Pod", "p"),
			types.StrategicMergePatchType,
			`{"spec":{"foo":1}}`,
			strict,
			422,
			[]string{`unknown field "spec.foo"`},
		},
		"twice": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{"data":{"a":"1"},"data":{}}`,
			strict,
			422,
			[]string{`duplicate field "data"`},
		},
		"not there": {v1("ConfigMap", "b"), types.MergePatchType, `{}`, metav1.PatchOptions{}, 404, nil},
		"other name": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{"metadata":{"name":"b"}}`,
			metav1.PatchOptions{},
			400,
			[]string{"the name of the object (b) does not match"},
		},
		"old version": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{"metadata":{"resourceVersion":"1"}}`,
			metav1.PatchOptions{},
			409,
			nil,
		},
		"too many": {
			v1("ConfigMap", "a"), types.JSONPatchType, tooMany, metav1.PatchOptions{}, 413, []string{"10000"},
		},
		"too large": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			strings.Repeat(" ", maxPatchBytes+1),
			metav1.PatchOptions{},
			413,
			nil,
		},
		"own kind": {
			at(tasks.GroupVersion.WithKind("Task"), "work", "t"),
			types.MergePatchType,
			`{"metadata":{"labels":{"a":"b"}}}`,
			metav1.PatchOptions{},
			0,
			[]string{`"a":"b"`},
		},
		"own kind, smp": {
			at(tasks.GroupVersion.WithKind("Task"), "work", "t"),
			types.StrategicMergePatchType,
			`{"metadata":{"labels":{"a":"b"}}}`,
			metav1.PatchOptions{},
			0,
			[]string{`"a":"b"`},
		},
		"unknown type": {v1("ConfigMap", "a"), types.PatchType("text/plain"), `{}`, metav1.PatchOptions{}, 415, nil},
		"no such part": {
			sub(v1("ConfigMap", "a"), "status"), types.MergePatchType, `{}`, metav1.PatchOptions{}, 405, nil,
		},
		"field validation": {
			v1("ConfigMap", "a"),
			types.MergePatchType,
			`{}`,
			metav1.PatchOptions{FieldValidation: "Maybe"},
			422,
			[]string{"fieldValidation"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.DryRun = []string{metav1.DryRunAll} // the cases do not affect each other
			res, err := h.Patch(h.ctx, c.target, c.kind, []byte(c.data), c.o)
			if c.code != 0 {
				requireStatus(t, err, c.code, c.words...)
				return
			}
			require.NoError(t, err)
			o, err := res.Value()
			require.NoError(t, err)
			out, err := json.Marshal(o)
			require.NoError(t, err)
			for _, w := range c.words {
				require.Contains(t, string(out), w)
			}
		})
	}
}

func TestPatchWarnsByDefault(t *testing.T) {
	h := build(t)
	put(h, v1("ConfigMap", ""), configMap("a"))
	w := &warnings{}
	_, err := h.Patch(warning.WithWarningRecorder(h.ctx, w), v1("ConfigMap", "a"), types.MergePatchType,
		[]byte(`{"dota":{}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{`unknown field "dota"`}, w.text)
}

func TestEphemeralContainers(t *testing.T) {
	h := build(t)
	put(h, v1("Pod", ""), smallPod("p"))
	res, err := h.Patch(h.ctx, sub(v1("Pod", "p"), "ephemeralcontainers"), types.StrategicMergePatchType,
		[]byte(`{"spec":{"ephemeralContainers":[{"name":"debug","image":"busybox"}]}}`), metav1.PatchOptions{})
	require.Len(t, answer[*corev1.Pod](t, res, err).Spec.EphemeralContainers, 1)
}

func TestPatchesThatRaceAllArrive(t *testing.T) {
	h := build(t)
	put(h, v1("ConfigMap", ""), configMap("a"))
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			_, err := h.Patch(h.ctx, v1("ConfigMap", "a"), types.MergePatchType, fmt.Appendf(nil, `{"data":{"k%d":"v"}}`, i),
				metav1.PatchOptions{})
			assertNoError(t, err)
		})
	}
	wg.Wait()
	res, err := h.Get(h.ctx, v1("ConfigMap", "a"), metav1.GetOptions{})
	require.Len(t, answer[*corev1.ConfigMap](t, res, err).Data, 40)
}

// With any mix of conditional updates and patches, a counter in an object counts each that succeeded.
func TestEveryAcknowledgedWriteCounts(t *testing.T) {
	h := build(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		name := fmt.Sprintf("c%d", n)
		put(h, v1("ConfigMap", ""), configMap(name, "n", "0"))
		writers := rapid.SliceOfN(rapid.SampledFrom([]string{"update", "patch"}), 1, 6).Draw(rt, "writers")
		var mu sync.Mutex
		updates, patches := 0, 0
		var wg sync.WaitGroup
		for i, w := range writers {
			wg.Go(func() {
				var err error
				switch w {
				case "update":
					var res Result
					if res, err = h.Get(h.ctx, v1("ConfigMap", name), metav1.GetOptions{}); err != nil {
						break
					}
					o, _ := res.Value()
					cm := o.(*corev1.ConfigMap).DeepCopy()
					cm.Data["n"] += "+"
					_, err = h.Update(h.ctx, v1("ConfigMap", name), cm, metav1.UpdateOptions{})
				case "patch":
					_, err = h.Patch(context.WithoutCancel(h.ctx), v1("ConfigMap", name), types.MergePatchType,
						fmt.Appendf(nil, `{"data":{"p%d":"x"}}`, i), metav1.PatchOptions{})
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && w == "update":
					updates++
				case err == nil:
					patches++
				case w == "patch":
					t.Errorf("a patch without a resourceVersion failed: %v", err)
				}
			})
		}
		wg.Wait()
		res, err := h.Get(h.ctx, v1("ConfigMap", name), metav1.GetOptions{})
		require.NoError(rt, err)
		o, _ := res.Value()
		data := o.(*corev1.ConfigMap).Data
		require.Equal(rt, updates, len(data["n"])-1)
		require.Equal(rt, patches, len(data)-1)
	})
}

func TestPatchesKeepManagersUnlessTheySaySo(t *testing.T) {
	h := build(t)
	note := `{"a":"\"managedFields\":[","managedFields":"x"}`
	for i, c := range []struct {
		kind  types.PatchType
		patch string
		left  bool
	}{
		{types.MergePatchType, `{"data":{"l":"1"},"metadata":{"annotations":` + note + `}}`, true},
		{types.StrategicMergePatchType, `{"data":{"l":"1"},"metadata":{"annotations":` + note + `}}`, true},
		{
			types.JSONPatchType,
			`[{"op":"add","path":"/metadata/annotations","value":` + note + `},{"op":"add","path":"/data/l","value":"1"}]`, true,
		},
		{
			types.JSONPatchType,
			`[{"op":"replace","path":"/metadata/managedFields","value":[{}]},{"op":"add","path":"/data/l","value":"1"}]`, false,
		},
		{types.MergePatchType, `{"data":{"l":"1"},"metadata":{"managedFields":[]}}`, false},
		{types.StrategicMergePatchType, `{"data":{"l":"1"},"metadata":{"managedFields":[{}]}}`, false},
		{
			types.JSONPatchType,
			`[{"op":"test","path":"/metadata/managedFields/0/manager","value":"me"},{"op":"add","path":"/data/l","value":"1"}]`,
			true,
		},
	} {
		name := fmt.Sprint("m", i)
		_, err := h.Create(h.ctx, v1("ConfigMap", ""), configMap(name, "k", "v"), createdBy("me"))
		require.NoError(t, err)
		for range 2 { // the second time with the annotations in the object
			_, err = h.Patch(h.ctx, v1("ConfigMap", name), c.kind, []byte(c.patch), by("me"))
			if !c.left {
				break
			}
			require.NoError(t, err, c.patch)
		}
		res, err := h.Get(h.ctx, v1("ConfigMap", name), metav1.GetOptions{})
		cm := answer[*corev1.ConfigMap](t, res, err)
		require.Equal(t, "1", cm.Data["l"], c.patch)
		if !c.left {
			require.NotContains(t, strings.Join(managersOf(cm), ""), `"f:k"`, c.patch)
			continue
		}
		require.Len(t, managersOf(cm), 1, c.patch)
		require.Contains(t, managersOf(cm)[0], `"f:data":{".":{},"f:k":{},"f:l":{}}`, c.patch)
	}
}

package object

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// liveDeployment returns a live object; entries are its managed fields.
func liveDeployment(t *testing.T, spec string, entries ...string) *unstructured.Unstructured {
	t.Helper()
	o := Parse([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","namespace":"ns","generation":3,"labels":{"x":"y"},
		"annotations":{"deployment.kubernetes.io/revision":"1"},"managedFields":[` +
		strings.Join(entries, ",") + `]},"spec":` + spec + `,"status":{"replicas":1}}`))
	require.NotNil(t, o)
	return &unstructured.Unstructured{Object: o}
}

func entry(manager, operation, subresource, fields string) string {
	return `{"manager":"` + manager + `","operation":"` + operation + `","subresource":"` + subresource +
		`","fieldsType":"FieldsV1","time":"2026-01-02T03:04:05Z","fieldsV1":` + fields + `}`
}

const (
	// As the server returns it: with defaults (protocol), canonical quantities, and the server's order of lists.
	asApplied = `{"replicas":1,"template":{"spec":{"containers":[{"name":"app","image":"i","ports":[{"containerPort":80,"protocol":"TCP"}],"resources":{"limits":{"cpu":"500m"}}}]}}}`
	owned     = `{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:image":{},"f:resources":{"f:limits":{"f:cpu":{}}}}}}}}}`
)

func TestDrifted(t *testing.T) {
	const without = `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:image":{},"f:resources":{"f:limits":{"f:cpu":{}}}}}}}}}`
	replicas := func(manager, sub string) string { return entry(manager, "Update", sub, `{"f:spec":{"f:replicas":{}}}`) }
	ours, less := entry("kontrol", "Apply", "", owned), entry("kontrol", "Apply", "", without)
	scaled := strings.Replace(asApplied, `"replicas":1`, `"replicas":5`, 1)
	for name, c := range map[string]struct {
		live   *unstructured.Unstructured
		ignore *kontrol.Ignore
		want   []string
	}{
		"nothing": {liveDeployment(t, asApplied, ours), nil, nil},
		"status": {
			liveDeployment(t, asApplied, ours,
				entry("kube-controller-manager", "Update", "status", `{"f:status":{"f:replicas":{}}}`)), nil, nil,
		},
		"scaled": {
			liveDeployment(t, scaled, less, replicas("kubectl-scale", "scale")),
			nil,
			[]string{"Changed .spec.replicas by kubectl-scale"},
		},
		"same value": {liveDeployment(t, asApplied, less, replicas("kubectl", "")), nil, nil},
		"ignored field": {
			liveDeployment(t, scaled, less, replicas("hpa", "scale")),
			&kontrol.Ignore{Fields: []string{"spec.replicas"}},
			nil,
		},
		"ignored owner": {
			liveDeployment(t, scaled, less, replicas("hpa", "scale")), &kontrol.Ignore{Managers: []string{"hpa"}}, nil,
		},
		"removed element": {
			liveDeployment(t, `{"replicas":1,"template":{"spec":{"containers":[]}}}`,
				entry("kontrol", "Apply", "", `{"f:spec":{"f:replicas":{}}}`)), nil,
			[]string{`Removed .spec.template.spec.containers[name="app"] by `},
		},
		"added by a person": {
			liveDeployment(t, asApplied, ours,
				entry("kubectl-label", "Update", "", `{"f:metadata":{"f:labels":{".":{},"f:x":{}}}}`)), nil,
			[]string{"Added .metadata.labels.x by kubectl-label"},
		},
		"added by Kubernetes": {
			liveDeployment(t, asApplied, ours,
				entry("kube-controller-manager", "Update", "",
					`{"f:metadata":{"f:annotations":{".":{},"f:deployment.kubernetes.io/revision":{}}}}`)), nil, nil,
		},
		"added element": {
			liveDeployment(t, strings.Replace(asApplied, `"containers":[`, `"containers":[{"name":"side","image":"s"},`, 1),
				ours,
				entry("injector", "Update", "",
					`{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"side\"}":{".":{},"f:name":{},"f:image":{}}}}}}}`)), nil,
			[]string{`Added .spec.template.spec.containers[name="side"] by injector`},
		},
		"managed fields cleared": {liveDeployment(t, asApplied), nil, nil},
		"garbage": {
			liveDeployment(t, scaled, entry("kontrol", "Apply", "", `{"x":1}`), replicas("a", "")),
			nil,
			[]string{"Changed .spec.replicas by a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.live.DeepCopy()
			applied := Record(liveDeployment(t, asApplied).Object)
			changed, added := Drifted(c.live, applied, Fields([]byte(owned)), NewIgnored(c.ignore))
			var got []string
			for _, d := range append(changed, added...) {
				got = append(got, string(d.Type)+" "+d.Drift.Path+" by "+d.Manager)
			}
			require.Equal(t, c.want, got)
			if Untouched(c.live.GetManagedFields(), OwnedText(liveDeployment(t, asApplied, ours).GetManagedFields()),
				NewIgnored(c.ignore)) {
				require.Empty(t, got)
			}
			require.Equal(t, before, c.live, "the argument was changed")
		})
	}
}

// TestUntouchedObjectsAreNotCompared checks which objects are skipped: those that only Kontrol, Kubernetes' own
// components and ignored managers have changed.
func TestUntouchedObjectsAreNotCompared(t *testing.T) {
	for name, c := range map[string]struct {
		managed []string
		want    bool
	}{
		"as applied": {[]string{entry("kontrol", "Apply", "", owned)}, true},
		"status and system": {
			[]string{
				entry("kontrol", "Apply", "", owned), entry("x", "Update", "status", `{"f:status":{}}`),
				entry("kubelet", "Update", "", `{"f:spec":{}}`),
			},
			true,
		},
		"ignored manager": {
			[]string{entry("kontrol", "Apply", "", owned), entry("hpa", "Update", "", `{"f:spec":{"f:replicas":{}}}`)},
			true,
		},
		"somebody else": {
			[]string{entry("kontrol", "Apply", "", owned), entry("a", "Update", "", `{"f:x":{}}`)}, false,
		},
		"a field was taken":    {[]string{entry("kontrol", "Apply", "", `{"f:spec":{}}`)}, false},
		"another manager's":    {[]string{entry("kontrol", "Update", "", owned)}, false},
		"managed fields clear": {nil, false},
	} {
		applied := OwnedText(liveDeployment(t, asApplied, entry("kontrol", "Apply", "", owned)).GetManagedFields())
		require.Equal(t, c.want,
			Untouched(liveDeployment(t, asApplied, c.managed...).GetManagedFields(), applied,
				NewIgnored(&kontrol.Ignore{Managers: []string{"hpa"}})), name)
	}
	require.False(t, Untouched(nil, nil, NewIgnored(nil)), "nothing was applied")
}

func TestRecordKeepsNoSecrets(t *testing.T) {
	o := Parse([]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","uid":"u","resourceVersion":"1","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"c2VjcmV0","a":"b"}},"data":{"a":"c2VjcmV0"},"status":{}}`))
	text := string(JSON(Record(o)))
	require.NotContains(t, text, "c2VjcmV0")
	require.Contains(t, text, `"a":"sha256:`)
	require.NotContains(t, text, "uid")
	require.Equal(t, "c2VjcmV0", o["data"].(map[string]any)["a"], "the argument was changed")
	require.Contains(t, string(JSON(map[string]any{"a": strings.Repeat("x", kontrol.MaxObject)})), "omitted")
}

func TestRemoveAndStrip(t *testing.T) {
	const text = `{"a":{"b":1,"c":[{"name":"x","v":1},{"name":"y","v":2}]},"l":["p","q"]}`
	for path, want := range map[string]string{
		"a.b":             `{"a":{"c":[{"name":"x","v":1},{"name":"y","v":2}]},"l":["p","q"]}`,
		`a.c[name="x"]`:   `{"a":{"b":1,"c":[{"name":"y","v":2}]},"l":["p","q"]}`,
		`a.c[name="y"].v`: `{"a":{"b":1,"c":[{"name":"x","v":1},{"name":"y"}]},"l":["p","q"]}`,
		"a.c[*].v":        `{"a":{"b":1,"c":[{"name":"x"},{"name":"y"}]},"l":["p","q"]}`,
		`l[="p"]`:         `{"a":{"b":1,"c":[{"name":"x","v":1},{"name":"y","v":2}]},"l":["q"]}`,
		"l[1]":            `{"a":{"b":1,"c":[{"name":"x","v":1},{"name":"y","v":2}]},"l":["p"]}`,
		"z.z":             text, "a.b.c": text, `a.c[v=3]`: text,
	} {
		steps, err := kontrol.ParsePath(path)
		require.NoError(t, err)
		got, err := json.Marshal(Strip(Parse([]byte(text)), steps))
		require.NoError(t, err)
		require.JSONEq(t, want, string(got), path)
	}
	o := Parse([]byte(text))
	p := fieldpath.MakePathOrDie("a", "c", fieldpath.KeyByFields("name", "x"), "v")
	v, ok := Lookup(o, p)
	require.True(t, ok)
	require.EqualValues(t, 1, v)
	got, err := json.Marshal(Remove(o, p))
	require.NoError(t, err)
	require.JSONEq(t, `{"a":{"b":1,"c":[{"name":"x"},{"name":"y","v":2}]},"l":["p","q"]}`, string(got))
	left, err := json.Marshal(o)
	require.NoError(t, err)
	require.JSONEq(t, text, string(left), "the argument was changed")
	_, ok = Lookup(o, fieldpath.MakePathOrDie("a", "c", 7))
	require.False(t, ok)
}

func TestCutLeavesWhatIdentifies(t *testing.T) {
	ignored := NewIgnored(&kontrol.Ignore{Fields: []string{"data.x"}, Managers: []string{"hpa"}})
	template := Parse([]byte(
		`{"apiVersion":"v1","kind":"A","metadata":{"name":"a"},"data":{"x":1,"y":2},"l":[{"name":"n","v":1}]}`))
	live := &unstructured.Unstructured{
		Object: Parse([]byte(`{"metadata":{"managedFields":[` +
			entry("hpa", "Update", "",
				`{"f:kind":{},"f:metadata":{"f:name":{}},"f:l":{"k:{\"name\":\"n\"}":{"f:name":{},"f:v":{}}}}`) + `]}}`)),
	}
	got, err := json.Marshal(ignored.Cut(template, live.GetManagedFields()))
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"v1","kind":"A","metadata":{"name":"a"},"data":{"y":2},"l":[{"name":"n"}]}`,
		string(got))
}

func TestHealthOf(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want kontrol.Health
	}{
		"a config map": {`{"apiVersion":"v1","kind":"ConfigMap"}`, kontrol.HealthHealthy},
		"being deleted": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`,
			kontrol.HealthProgressing,
		},
		"not observed": {
			`{"apiVersion":"x/v1","kind":"A","metadata":{"generation":2},"status":{"observedGeneration":1}}`,
			kontrol.HealthProgressing,
		},
		"stalled": {
			`{"apiVersion":"x/v1","kind":"A","status":{"conditions":[{"type":"Stalled","status":"True"}]}}`,
			kontrol.HealthDegraded,
		},
		"not ready": {
			`{"apiVersion":"x/v1","kind":"A","status":{"conditions":[{"type":"Ready","status":"False"}]}}`,
			kontrol.HealthProgressing,
		},
		"deployment": {
			`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":2},"status":{"replicas":2,"updatedReplicas":2,"availableReplicas":2}}`, kontrol.HealthHealthy,
		},
		"deployment rolls": {
			`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":2},"status":{"replicas":2,"updatedReplicas":1,"availableReplicas":2}}`, kontrol.HealthProgressing,
		},
		"deployment is stuck": {
			`{"apiVersion":"apps/v1","kind":"Deployment","status":{"conditions":[{"type":"Progressing","status":"False"}]}}`,
			kontrol.HealthDegraded,
		},
		"stateful set": {
			`{"apiVersion":"apps/v1","kind":"StatefulSet","spec":{"replicas":1},"status":{"readyReplicas":0}}`,
			kontrol.HealthProgressing,
		},
		"daemon set": {
			`{"apiVersion":"apps/v1","kind":"DaemonSet","status":{"observedGeneration":0,"desiredNumberScheduled":1,"updatedNumberScheduled":1,"numberReady":1}}`, kontrol.HealthHealthy,
		},
		"failed job": {
			`{"apiVersion":"batch/v1","kind":"Job","status":{"conditions":[{"type":"Failed","status":"True"}]}}`,
			kontrol.HealthDegraded,
		},
		"running job": {`{"apiVersion":"batch/v1","kind":"Job","status":{"active":1}}`, kontrol.HealthHealthy},
		"crashing pod": {
			`{"apiVersion":"v1","kind":"Pod","status":{"phase":"Running","containerStatuses":[{"name":"a","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}`, kontrol.HealthDegraded,
		},
		"claim": {
			`{"apiVersion":"v1","kind":"PersistentVolumeClaim","status":{"phase":"Pending"}}`, kontrol.HealthProgressing,
		},
		"load balancer": {
			`{"apiVersion":"v1","kind":"Service","spec":{"type":"LoadBalancer"}}`, kontrol.HealthProgressing,
		},
		"definition": {
			`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","status":{"conditions":[{"type":"Established","status":"True"}]}}`, kontrol.HealthHealthy,
		},
		"garbage": {
			`{"apiVersion":"v1","kind":"Pod","spec":3,"status":{"conditions":7,"containerStatuses":["x"]}}`,
			kontrol.HealthProgressing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := HealthOf(&unstructured.Unstructured{Object: Parse([]byte(c.text))})
			require.Equal(t, c.want, got)
		})
	}
}

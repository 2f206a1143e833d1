package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// partial are partial patches of pods and deployments, each for one place in the object.
var partial = []string{
	`{"metadata":{"labels":{"a":"2","b":null}}}`, `{"metadata":{"labels":null}}`,
	`{"metadata":{"uid":"u","$deleteFromPrimitiveList/finalizers":["x"]}}`,
	`{"metadata":{"finalizers":["z"],"$setElementOrder/finalizers":["z","y","x"]}}`,
	`{"metadata":{"$patch":"replace","name":"p"}}`, `{"metadata":{"annotations":{"$patch":"delete"}}}`,
	`{"metadata":{"ownerReferences":[{"uid":"o","name":"other"}]}}`, `{"metadata":{"creationTimestamp":null}}`,
	`{"metadata":{"deletionGracePeriodSeconds":5}}`, `{"metadata":null}`,
	`{"spec":{"containers":[{"name":"c","image":"j"}]}}`,
	`{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"containers":[{"name":"d","image":"k"}]}}`,
	`{"spec":{"containers":[{"name":"c","$patch":"delete"}]}}`, `{"spec":{"securityContext":{"runAsUser":7}}}`,
	`{"spec":{"securityContext":{"runAsUser":null,"fsGroup":null}}}`,
	`{"spec":{"securityContext":null}}`, `{"spec":{"securityContext":{"$patch":"replace","fsGroup":1}}}`,
	`{"spec":{"affinity":{"nodeAffinity":{"$retainKeys":["x"]}}}}`,
	`{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{}]}}}}}`,
	`{"spec":{"nodeSelector":{"a":"b"}}}`,
	`{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`,
	`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"new"}]}}}}`,
	`{"spec":{"template":{"metadata":{"labels":{"x":null}}}}}`,
	`{"spec":{"replicas":null,"paused":true}}`, `{"spec":{"nothing":{"of":"the kind"}}}`, `{"spec":5}`, `{"spec":[]}`,
	`{"spec":{}}`, `{"$patch":"replace"}`, `{"$retainKeys":["metadata"]}`,
	`{"$setElementOrder/spec":["a"]}`, `{"$deleteFromPrimitiveList/spec":["a"]}`,
	`{"$setElementOrder/metadata":[1],"metadata":{"labels":{"q":"r"}}}`,
	`{"status":{"$setElementOrder/conditions":[{"type":"Ready"}]}}`,
	`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"podIPs":[{"ip":"10.0.0.1"}]}}`,
	`{"status":{"startTime":"2026-01-01T00:00:00Z"}}`, `{"status":{"startTime":"never"}}`,
	`{"status":{"conditions":[{"type":"Ready","$patch":"delete"},{"type":"Other","status":"False"}]}}`, `{"status":null}`,
	`{"kind":"Other","apiVersion":null}`, `{"unknown":1}`, `{"status":{"phase":7}}`,
}

// Partial conversion has the same results and errors as conversion of the whole object.
func TestPartialStrategicMerge(t *testing.T) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "n", UID: "u", Labels: map[string]string{"a": "1", "b": "1"},
			Annotations: map[string]string{"n": "1"}, Finalizers: []string{"x", "y"},
			OwnerReferences:   []metav1.OwnerReference{{UID: "o", Name: "owner"}},
			CreationTimestamp: metav1.Unix(1_700_000_000, 0),
		},
		Spec: corev1.PodSpec{
			Containers:      []corev1.Container{{Name: "c", Image: "i"}, {Name: "d", Image: "i"}},
			NodeName:        "node",
			SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr[int64](3)},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			QOSClass:   corev1.PodQOSBestEffort,
			Conditions: []corev1.PodCondition{{Type: "Ready", Status: "False"}, {Type: "PodScheduled", Status: "True"}},
		},
	}
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Finalizers: []string{"x"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr[int32](3),
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "y"}}, Spec: *pod.Spec.DeepCopy(),
			},
		},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}
	outcomes := map[bool]int{}
	check := func(t require.TestingT, old runtime.Object, data, strict string, text bool) {
		p := &patch{ctx: context.Background(), kind: types.StrategicMergePatchType, data: []byte(data), strict: strict}
		require.NoError(t, p.parse())
		before, _ := json.Marshal(old)
		out, whole := old.DeepCopyObject(), old.DeepCopyObject()
		clearObject(out)
		clearObject(whole)
		err, wholeErr := p.strategic(old, out), strategicWhole(p, old, whole)
		after, _ := json.Marshal(old)
		require.JSONEq(t, string(before), string(after), "the patched object itself has changed: %s", data)
		outcomes[err == nil]++
		if wholeErr != nil {
			require.Error(t, err, "%s %s", data, strict)
			if text {
				require.EqualError(t, err, wholeErr.Error(), "%s %s", data, strict)
			}
			return
		}
		require.NoError(t, err, "%s %s", data, strict)
		have, _ := json.Marshal(out)
		want, _ := json.Marshal(whole)
		require.JSONEq(t, string(want), string(have), data)
	}
	objects := []runtime.Object{pod, bare, deployment}
	modes := []string{"", metav1.FieldValidationStrict, metav1.FieldValidationIgnore}
	for _, data := range partial {
		for _, old := range objects {
			for _, strict := range modes {
				check(t, old, data, strict, true)
			}
		}
	}
	require.Greater(t, outcomes[true], 100)
	require.Greater(t, outcomes[false], 20)
	rapid.Check(t, func(rt *rapid.T) {
		all := map[string]any{}
		for _, one := range rapid.SliceOfN(rapid.SampledFrom(partial), 1, 4).Draw(rt, "parts") {
			var in map[string]any
			require.NoError(rt, json.Unmarshal([]byte(one), &in))
			join(all, in)
		}
		data, err := json.Marshal(all)
		require.NoError(rt, err)
		// Which of several mistakes is reported depends on the order of a map.
		check(rt, rapid.SampledFrom(objects).Draw(rt, "object"), string(data),
			rapid.SampledFrom(modes).Draw(rt, "validation"), false)
	})
}

func join(into, from map[string]any) {
	for k, v := range from {
		a, ok1 := into[k].(map[string]any)
		b, ok2 := v.(map[string]any)
		if ok1 && ok2 {
			a = maps.Clone(a)
			join(a, b)
			into[k] = a
		} else {
			into[k] = v
		}
	}
}

func clearObject(o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		*o = corev1.Pod{}
	case *appsv1.Deployment:
		*o = appsv1.Deployment{}
	}
}

// strategicWhole is patch.strategic with the whole object.
func strategicWhole(p *patch, old, out runtime.Object) error {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return err
	}
	after, err := p.mergeInto(before, out)
	if err != nil {
		return err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, out, p.checks())
	text := func() string { return fmt.Sprintf("%+v", p.merge) }
	problems, strict := runtime.AsStrictDecodingError(err)
	switch {
	case strict:
		return p.reportProblems(text, problems.Errors())
	case err != nil:
		return invalidPatch(text(), err)
	}
	return nil
}

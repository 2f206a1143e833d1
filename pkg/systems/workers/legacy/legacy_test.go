package legacy

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const seed = `
kind: Service
metadata: {name: calculator-service}
spec: {selector: "calculator-rs-*"}
---
kind: Service
metadata: {name: all}
spec: {selector: "*"}
---
kind: Container
metadata: {name: calculator-template}
spec: {module: workers, function: calculator_worker, parameters: {}}
---
kind: ReplicaSet
metadata: {name: calculator-rs}
spec: {container: calculator-template, replicas: 3}
---
# comments only
---
kind: Container
metadata: {name: aggregator}
spec: {module: workers, function: aggregator_worker, parameters: {window_size: 3}}
`

func TestConvert(t *testing.T) {
	list, err := Convert(strings.NewReader(seed), "ns", nil)
	require.NoError(t, err)
	require.Len(t, list, 5)
	pod := list[0].(*corev1.Pod)
	require.Equal(t, "calculator-template", pod.Name)
	q, err := workers.ParseQueue(pod)
	require.NoError(t, err)
	require.NotNil(t, q)
	aggregator := list[1].(*corev1.Pod)
	require.Contains(t, aggregator.Spec.Containers[0].Env, corev1.EnvVar{
		Name: workers.ParametersEnv, Value: `{"window_size":"3"}`,
	})
	w := list[2].(*workers.Worker)
	require.Equal(t, workers.FunctionCalculator, w.Spec.Function)
	require.EqualValues(t, 3, *w.Spec.Replicas)
	require.Equal(t, map[string]string{workers.LabelWorker: "calculator-rs"}, list[3].(*corev1.Service).Spec.Selector)
	all := list[4].(*corev1.Service).Spec.Selector
	require.Len(t, all, 1)
	for k, v := range all {
		require.Equal(t, v, pod.Labels[k])
		require.Equal(t, v, w.Spec.PodLabels[k], "what several match has a label for the service")
	}
	var out bytes.Buffer
	require.NoError(t, command.PrintManifests(&out, list...))
	require.NotContains(t, out.String(), "status")
	require.Contains(t, out.String(), "kind: Worker")
}

// TestConvertKnowsEarlierContainers checks that a replica set may refer to a container that was applied earlier, for
// example to scale it.
func TestConvertKnowsEarlierContainers(t *testing.T) {
	set := "kind: ReplicaSet\nmetadata: {name: rs}\nspec: {container: t, replicas: 5}\n"
	_, err := Convert(strings.NewReader(set), "", nil)
	require.ErrorContains(t, err, `there is no Container "t"`)
	list, err := Convert(strings.NewReader(set), "", func(string) *Container {
		return &Container{Function: "echo_worker"}
	})
	require.NoError(t, err)
	require.Equal(t, "ECHO", list[0].(*workers.Worker).Spec.Parameters["prefix"])
}

func TestConvertRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, err string }{
		"kind":     {"kind: Deployment\nmetadata: {name: a}", "none of Container"},
		"field":    {"kind: Container\nmetadata: {name: a}\nspec: {function: echo_worker, port: 1}", "port"},
		"name":     {"kind: Container\nmetadata: {name: A}\nspec: {function: echo_worker}", "metadata.name"},
		"function": {"kind: Container\nmetadata: {name: a}\nspec: {function: mine}", "name an image"},
		"no spec":  {"kind: Container\nmetadata: {name: a}", "spec is missing"},
		"twice": {
			"kind: Container\nmetadata: {name: a}\nspec: {function: echo}\n---\nkind: Container\nmetadata: {name: a}\nspec: " +
				"{function: echo}", "twice",
		},
		"glob":    {"kind: Service\nmetadata: {name: a}\nspec: {selector: '['}", "glob"},
		"nothing": {"kind: Service\nmetadata: {name: a}\nspec: {selector: 'x*'}", "matches no"},
		"replicas": {
			"kind: Container\nmetadata: {name: a}\nspec: {function: echo}\n---\nkind: ReplicaSet\nmetadata: {name: b}\nspec: " +
				"{container: a, replicas: -1}", "spec.replicas",
		},
		"not YAML":  {"kind: [", "document 1"},
		"documents": {strings.Repeat("kind: Container\nmetadata: {name: a}\n---\n", maxDocuments+1), "documents"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Convert(strings.NewReader(c.text), "", nil)
			require.ErrorContains(t, err, c.err)
		})
	}
}

package scheduler

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const configurationHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// fitProfile returns a configuration with a profile "packed" that has only the given strategy.
func fitProfile(strategy string) string {
	return configurationHead + `
profiles:
- schedulerName: packed
  plugins: {score: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit}]}}
  pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: ` + strategy + `}}]
`
}

// Scores equal upstream's for the same nodes and pod.
func TestScoringStrategies(t *testing.T) {
	gpus := func(n *corev1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("4") }
	wantsGPU := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	nodes := []*corev1.Node{testNode("empty", ofNode("4", "8Gi", 1), gpus), testNode("busy", ofNode("4", "8Gi", 1), gpus)}
	there := bound{testPod("x", cpu("2"), wantsGPU), "busy"}
	for strategy, c := range map[string]struct {
		want        string
		empty, busy int64
	}{
		"{type: LeastAllocated, resources: [{name: cpu}]}":                                     {"empty", 75, 25},
		"{type: MostAllocated, resources: [{name: cpu}]}":                                      {"busy", 25, 75},
		"{type: MostAllocated, resources: [{name: example.com/gpu, weight: 3}, {name: cpu}]}":  {"busy", 25, 56},
		"{type: MostAllocated, resources: [{name: example.com/none, weight: 3}, {name: cpu}]}": {"busy", 25, 75},
		"{type: MostAllocated, resources: [{name: example.com/none}]}":                         {"empty", 0, 0},
		"{type: RequestedToCapacityRatio, resources: [{name: cpu}], requestedToCapacityRatio: {shape: [{utilization: 0, " +
			"score: 0}, {utilization: 100, score: 10}]}}": {"busy", 25, 75},
		"{type: RequestedToCapacityRatio, resources: [{name: cpu}], requestedToCapacityRatio: {shape: [{utilization: 30, " +
			"score: 10}, {utilization: 50, score: 0}]}}": {"empty", 100, 0},
		"{type: RequestedToCapacityRatio, resources: [{name: cpu}], requestedToCapacityRatio: {shape: [{utilization: 10, " +
			"score: 2}, {utilization: 20, score: 4}]}}": {"empty", 40, 40},
	} {
		t.Run(strategy, func(t *testing.T) {
			configured, err := ParseConfiguration([]byte(fitProfile(strategy)))
			require.NoError(t, err)
			s := world(nodes, there)
			s.profiles = configured.profiles
			p := testPod("p", cpu("1"), wantsGPU, scheduledBy("packed"))
			e := s.explain(p)
			require.Equal(t, "packed", e.Profile)
			require.Equal(t, []ScoreWeight{{resourcesFit, 1}}, e.Scores)
			got := map[string]int64{}
			for _, n := range e.Nodes {
				got[n.Name] = n.Total
			}
			require.Equal(t, map[string]int64{"empty": c.empty, "busy": c.busy}, got)
			n, failed := s.pick(s.info(p))
			require.Nil(t, failed)
			require.Equal(t, got[c.want], got[n.name])
		})
	}
}

func TestConfiguration(t *testing.T) {
	c, err := ParseConfiguration([]byte(configurationHead + `
percentageOfNodesToScore: 50
profiles:
- schedulerName: default-scheduler
- schedulerName: images
  plugins:
    score:
      disabled: [{name: NodeResourcesBalancedAllocation}]
      enabled: [{name: ImageLocality, weight: 7}]
`))
	require.NoError(t, err)
	require.Equal(t, 50, c.SamplePercent)
	names := []string{}
	for _, p := range c.profiles {
		names = append(names, p.name)
	}
	require.Equal(t, []string{"default-scheduler", "images", "task"}, names)
	require.Len(t, c.profiles[0].scores, len(scores))
	require.Len(t, c.profiles[1].scores, len(scores)-1)
	require.EqualValues(t, 7, c.profiles[1].scores[indexOf(c.profiles[1].scores, "ImageLocality")].weight)
	require.EqualValues(t, 1, scores[indexOf(scores, "ImageLocality")].weight, "the default is as it was")

	for text, want := range map[string]string{
		"kind: Pod":                         `this is a "Pod"`,
		configurationHead + "extenders: []": `unknown field "extenders"`,
		configurationHead +
			"percentageOfNodesToScore: 101": "not from 0 to 100",
		configurationHead +
			"profiles: [{schedulerName: task}]": `there is a profile "task" already`,
		configurationHead +
			"profiles: [{}, {schedulerName: default-scheduler}]": "profiles[1]: there is a profile",
		configurationHead +
			"profiles: [{plugins: {filter: {disabled: [{name: NodePorts}]}}}]": `unknown field "filter"`,
		configurationHead +
			"profiles: [{plugins: {score: {enabled: [{name: Mine}]}}}]": `no score "Mine"; there are NodeResourcesFit,`,
		configurationHead +
			"profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}}]": "weight -1",
		configurationHead +
			"profiles: [{pluginConfig: [{name: InterPodAffinity, args: {}}]}]": `"InterPodAffinity" has no settings`,
		configurationHead +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: " +
			"[a]}}]}]": `unknown field "ignoredResources"`,
		configurationHead +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {kind: " +
			"InterPodAffinityArgs}}]}]": "a NodeResourcesFitArgs of",
		fitProfile("{type: Best}"): `no type "Best"`,
		fitProfile("{type: MostAllocated, resources: [{name: cpu, weight: " +
			"101}]}"): "weight from 1 to 100",
		fitProfile("{type: MostAllocated, requestedToCapacityRatio: {shape: [{utilization: 1, score: " +
			"1}]}}"): "belongs to type RequestedToCapacityRatio",
		fitProfile("{type: RequestedToCapacityRatio}"): "belongs to type RequestedToCapacityRatio",
		fitProfile("{type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: " +
			"[]}}"): "no point",
		fitProfile("{type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 101, score: " +
			"1}]}}"): "from 0 to 100",
		fitProfile("{type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 9, score: 1}, " +
			"{utilization: 9, score: 2}]}}"): "has to increase",
	} {
		_, err := ParseConfiguration([]byte(text))
		require.ErrorContains(t, err, want, strings.TrimPrefix(text, configurationHead))
	}
}

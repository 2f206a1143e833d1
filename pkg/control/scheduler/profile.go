package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// TaskProfile is the spec.schedulerName of pods that are placed by the rule for tasks: on the node with the fewest
// tasks, then the most free capacity, then the latest heartbeat.
const TaskProfile = "task"

// profile contains the steps for pods that name it in spec.schedulerName.
type profile struct {
	name    string
	filters []filter
	scores  []score
	// ordered compares all feasible nodes by one score after the other; a score only breaks ties of the scores
	// before it. Otherwise a sample of nodes is compared by the sum of the weighted scores.
	ordered bool
}

var taskProfile = &profile{
	name:    TaskProfile,
	filters: slices.Concat(filters, taskFilters),
	scores:  taskScores,
	ordered: true,
}

var defaultProfiles = []*profile{{name: corev1.DefaultSchedulerName, filters: filters, scores: scores}, taskProfile}

// taskFilters follow the default profile's filters.
var taskFilters = []filter{
	{
		name:   "NodeHeartbeat",
		refuse: unless(func(c *cycle, n *nodeInfo) bool { return !c.state.silent(n) }, "node(s) sent no heartbeat"),
	},
}

// taskScores are compared in this order.
var taskScores = []score{
	{name: "FewestTasks", of: fewestTasks, relative: true},
	{name: "FreeCPU", of: freeCPU, relative: true},
	{name: "FreeMemory", of: freeMemory, relative: true},
	{name: "LatestHeartbeat", of: latestHeartbeat, relative: true},
}

// profileOf returns the profile that schedules a pod, or nil if another scheduler does.
func (s *state) profileOf(p *corev1.Pod) *profile { return profileIn(s.profiles, p) }

func profileIn(profiles []*profile, p *corev1.Pod) *profile {
	if i := slices.IndexFunc(profiles, func(f *profile) bool { return f.name == p.Spec.SchedulerName }); i >= 0 {
		return profiles[i]
	}
	return nil
}

func (s *state) info(p *corev1.Pod) *podInfo {
	i := newPodInfo(p)
	if f := s.profileOf(p); f != nil {
		i.profile = f
	}
	return i
}

func isTask(p *corev1.Pod) bool { return p.Spec.SchedulerName == TaskProfile || byTask(p) }

func byTask(p *corev1.Pod) bool {
	for i := range p.OwnerReferences {
		r := &p.OwnerReferences[i]
		if r.Controller != nil && *r.Controller && r.Kind == "Task" &&
			strings.HasPrefix(r.APIVersion, tasks.GroupVersion.Group+"/") {
			return true
		}
	}
	return false
}

func fewestTasks(_ *cycle, n *nodeInfo) int64 { return -int64(n.tasks) - n.elsewhere }

func freeCPU(c *cycle, n *nodeInfo) int64 { return n.most.cpu - n.score.cpu - c.scoreCPU }

func freeMemory(c *cycle, n *nodeInfo) int64 { return n.most.memory - n.score.mem - c.scoreMem }

// latestHeartbeat returns the node's last heartbeat in milliseconds since 1970.
func latestHeartbeat(c *cycle, n *nodeInfo) int64 { return c.state.heartbeat(n).UnixMilli() }

// first picks the node with the highest scores, compared one after the other. Of equals, it picks the first.
func (c *cycle) first(nodes []*nodeInfo) *nodeInfo {
	nodes = slices.Clone(nodes)
	for i := range c.profile.scores {
		f := &c.profile.scores[i]
		if len(nodes) == 1 || f.prepare != nil && !f.prepare(c) {
			continue
		}
		var most int64
		keep := nodes[:0]
		for j, n := range nodes {
			switch v := f.of(c, n); {
			case j == 0 || v > most:
				most = v
				keep = append(keep[:0], n)
			case v == most:
				keep = append(keep, n)
			}
		}
		nodes = keep
	}
	return nodes[0]
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/client"
)

// The steps of a pod's way to a node, each a list: filters refuse nodes, scores choose among those that are left, reserves take what
// the pod was chosen for, preBinds make it ready outside the lock, and the binding is written. Names are upstream's.

// filter refuses nodes. Check is quick and allocates nothing; Explain says, for people and in upstream's
// words, why Check refused.
type filter struct {
	name string
	// prepare runs once per cycle; false: the filter has nothing to say about this pod. Nil: it always has.
	prepare func(*cycle) bool
	check   func(*cycle, *nodeInfo) bool
	explain func(*cycle, *nodeInfo) []string
	// curable tells whether taking pods away from the node could make it pass.
	curable bool
	// wide tells that what happens on one node may make another one pass.
	wide bool
}

// filters are asked in this order, and the first to refuse answers for the node.
var filters = []filter{
	{
		name: "NodeUnschedulable", check: schedulable, explain: reason("node(s) were unschedulable"),
	}, {
		name: "NodeName", check: nodeNamed, explain: reason("node(s) didn't match the requested node name"),
	}, {
		name: "TaintToleration", check: tolerated, explain: reason("node(s) had untolerated taint(s)"),
	}, {
		name: "NodeAffinity", prepare: func(c *cycle) bool { return c.selects }, check: selected,
		explain: reason("node(s) didn't match Pod's node affinity/selector"),
	}, {
		name: "NodePorts", prepare: func(c *cycle) bool { return len(c.ports) > 0 }, check: portsFree,
		explain: reason("node(s) didn't have free ports for the requested pod ports"), curable: true,
	}, {
		name: "NodeResourcesFit", check: fits, explain: explainFit, curable: true,
	}, {
		name: "PodTopologySpread", prepare: prepareSpread, check: spreads, explain: explainSpread, curable: true, wide: true,
	}, {
		name: "InterPodAffinity", prepare: prepareBetween, check: affinityMet, explain: explainBetween, curable: true, wide: true,
	},
}

func reason(text string) func(*cycle, *nodeInfo) []string {
	return func(*cycle, *nodeInfo) []string { return []string{text} }
}

// score prefers nodes.
type score struct {
	name   string
	weight int64
	// prepare runs once per cycle, after the filters'; false: all nodes are alike to this pod. Nil: never.
	prepare func(*cycle) bool
	// of is the node's score. It is from 0 to mostScore, or any number where relative is set: then the lowest of the
	// nodes compared gets 0 and the highest mostScore.
	of       func(*cycle, *nodeInfo) int64
	relative bool
}

// scores are added up, with upstream's default weights.
var scores = []score{
	{name: "NodeResourcesFit", weight: 1, of: least},
	{name: "NodeResourcesBalancedAllocation", weight: 1, of: balance},
	{name: "ImageLocality", weight: 1, of: locality},
	{name: "TaintToleration", weight: 3, prepare: func(c *cycle) bool { return c.state.soft > 0 }, of: softTaints, relative: true},
	{name: "NodeAffinity", weight: 2, prepare: prepareNodePreferences, of: nodePreferences, relative: true},
	{name: "PodTopologySpread", weight: 2, prepare: prepareSpreadScore, of: spreadScore, relative: true},
	{name: "InterPodAffinity", weight: 2, prepare: preparePodPreferences, of: podPreferences, relative: true},
}

// reserve takes, under the scheduler's lock, what a pod was promised, so that no other pod is promised it too. If a later step or the
// binding fails, all reserves are given back, in reverse order, also those that never took anything: release must bear that.
type reserve struct {
	name    string
	take    func(*state, *podInfo, *nodeInfo) error
	release func(*state, *podInfo, *nodeInfo)
}

var reserves = []reserve{{name: "NodeResources", take: assume, release: unassume}}

// assume counts a pod on its node from now on.
func assume(s *state, p *podInfo, n *nodeInfo) error {
	p.assumed = true
	s.place(p, n.name)
	return nil
}

// unassume takes a pod off the node where it counts only because it was assumed.
func unassume(s *state, p *podInfo, _ *nodeInfo) {
	if p.assumed && p.node != nil {
		s.lift(p)
	}
	p.assumed = false
}

// preBind makes ready what a pod needs on its node, before the binding is written. It runs without the scheduler's lock, and takes
// one of Config.Binders' places: run must bound its wait. After an error the pod is given back and tried again.
type preBind struct {
	name string
	run  func(ctx context.Context, c client.Interface, pod *corev1.Pod, node string) error
}

// reserve runs the reserves for a pod on its node.
func (s *Scheduler) reserve(p *pending, n *nodeInfo) error {
	p.reserved = n
	for _, r := range s.state.reserves {
		if err := r.take(s.state, p.info, n); err != nil {
			s.giveBack(p)
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// giveBack releases what a pod was promised and did not get, and wakes those that it may help.
func (s *Scheduler) giveBack(p *pending) {
	n := p.reserved
	if n == nil {
		return
	}
	p.reserved = nil
	for _, r := range slices.Backward(s.state.reserves) {
		r.release(s.state, p.info, n)
	}
	s.help(n)
}

// errGone says that the pod to bind is not there any more.
var errGone = errors.New("the pod is gone")

// commit runs what comes after the decision: the preBinds, and the binding.
func (s *Scheduler) commit(ctx context.Context, p *pending, node string) error {
	for _, step := range s.preBinds {
		if err := step.run(ctx, s.client, p.info.pod, node); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	err := s.bind(ctx, p, node)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

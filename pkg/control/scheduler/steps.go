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

// Scheduling steps are upstream's framework's, with upstream's names: filters reject nodes, scores rank the
// feasible ones, reserves claim resources on the chosen node, preBinds prepare the pod outside the lock, and then
// the binding is written.

// filter rejects nodes.
type filter struct {
	name string
	// prepare runs once per cycle. If it returns false, the pod skips the filter. Nil means that no pod skips it.
	prepare func(*cycle) bool
	// refuse returns upstream's messages, nil if the node passes. It runs for most nodes in most cycles.
	refuse func(*cycle, *nodeInfo) []string
	// curable means that evicting pods from the node may make it pass.
	curable bool
	// wide means that a change on one node may make another one pass.
	wide bool
}

const (
	nodeAffinity  = "NodeAffinity"
	volumeBinding = "VolumeBinding"
)

// filters run in this order. The first one to reject a node provides the reason.
var filters = []filter{
	{
		name: "NodeUnschedulable", refuse: unless(schedulable, "node(s) were unschedulable"),
	}, {
		name: "NodeName", refuse: unless(nodeNamed, "node(s) didn't match the requested node name"),
	}, {
		name: "TaintToleration", refuse: unless(tolerated, "node(s) had untolerated taint(s)"),
	}, {
		name: nodeAffinity, prepare: func(c *cycle) bool { return c.selection != nil },
		refuse: unless(selected, "node(s) didn't match Pod's node affinity/selector"),
	}, {
		name: "NodePorts", prepare: func(c *cycle) bool { return len(c.ports) > 0 },
		refuse: unless(portsFree, "node(s) didn't have free ports for the requested pod ports"), curable: true,
	}, {
		name: "NodeResourcesFit", refuse: shortages, curable: true,
	}, {
		name: "VolumeRestrictions", prepare: prepareVolumes, refuse: unless(claimsFree, usedByAnotherPod), wide: true,
	}, {
		name: "NodeVolumeLimits", prepare: prepareLimits, refuse: limits, curable: true,
	}, {
		name: volumeBinding, prepare: prepareVolumes, refuse: volumesUnfit,
	}, {
		name: "VolumeZone", prepare: prepareVolumes, refuse: unless(zonesMatch, otherZone),
	}, {
		name: dynamicResources, prepare: prepareDevices, refuse: devicesUnfit,
	}, {
		name: "NodeDeclaredFeatures", prepare: prepareFeatures,
		refuse: unless(hasFeatures, "node(s) didn't match Pod's required features"),
	}, {
		name: "PodTopologySpread", prepare: prepareSpread, refuse: crowded, curable: true, wide: true,
	}, {
		name: "InterPodAffinity", prepare: preparePodAffinity, refuse: violatedAffinity, curable: true, wide: true,
	},
}

// unless returns the refuse function of a check that has one message.
func unless(passes func(*cycle, *nodeInfo) bool, message string) func(*cycle, *nodeInfo) []string {
	refusal := []string{message}
	return func(c *cycle, n *nodeInfo) []string {
		if passes(c, n) {
			return nil
		}
		return refusal
	}
}

type score struct {
	name   string
	weight int64
	// prepare runs once per cycle, after the filters' prepare. If it returns false, the pod skips the score. May be
	// nil.
	prepare func(*cycle) bool
	// of returns the node's score, from 0 to mostScore. If relative is set, it may be any number; the scores of the
	// compared nodes are then scaled to 0..mostScore.
	of       func(*cycle, *nodeInfo) int64
	relative bool
}

// scores are the default profile's, with upstream's default weights.
var scores = []score{
	{name: "NodeResourcesFit", weight: 1, of: least},
	{name: "NodeResourcesBalancedAllocation", weight: 1, of: balance},
	{name: "ImageLocality", weight: 1, of: locality},
	{
		name:     "TaintToleration",
		weight:   3,
		prepare:  func(c *cycle) bool { return c.state.soft > 0 },
		of:       softTaints,
		relative: true,
	},
	{name: nodeAffinity, weight: 2, prepare: prepareNodePreferences, of: nodePreferences, relative: true},
	{name: dynamicResources, weight: 2, prepare: prepareAlternatives, of: earlyAlternatives},
	{name: volumeBinding, weight: 1, prepare: prepareSpace, of: space},
	{name: "PodTopologySpread", weight: 2, prepare: prepareSpreadScore, of: spreadScore, relative: true},
	{name: "InterPodAffinity", weight: 2, prepare: preparePodPreferences, of: podPreferences, relative: true},
}

// reserve claims resources for a pod under the scheduler's lock. If a later step fails, all reserves are released in
// reverse order, including those that claimed nothing, so release must be idempotent.
type reserve struct {
	name    string
	take    func(*state, *podInfo, *nodeInfo) error
	release func(*state, *podInfo, *nodeInfo)
}

// reserves run in this order.
var reserves = []reserve{
	{name: "NodeResources", take: assume, release: unassume},
	{name: volumeBinding, take: takeVolumes, release: releaseVolumes},
	{name: dynamicResources, take: takeDevices, release: releaseDevices},
}

// assume accounts a pod to its node before it is bound.
func assume(s *state, p *podInfo, n *nodeInfo) error {
	p.assumed = true
	s.assign(p, n.name)
	return nil
}

// unassume removes a pod from its node if it was only assumed.
func unassume(s *state, p *podInfo, _ *nodeInfo) {
	if p.assumed && p.node != nil {
		s.remove(p)
	}
	p.assumed = false
}

// preBind prepares a pod on its node before the binding is written. It runs without the scheduler's lock and
// occupies one of Config.Binders, so run must have a timeout. After an error, the pod is unreserved and retried.
type preBind struct {
	name string
	run  func(ctx context.Context, c client.Interface, pod *corev1.Pod, node string) error
}

func (s *Scheduler) reserve(p *pending, n *nodeInfo) error {
	p.reserved = n
	for _, r := range s.state.reserves {
		if err := r.take(s.state, p.info, n); err != nil {
			s.unreserve(p)
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// unreserve releases a pod's reservation and retries the pods that may now fit.
func (s *Scheduler) unreserve(p *pending) {
	if n := p.reserved; n != nil {
		s.release(p)
		s.help(n)
	}
}

func (s *Scheduler) release(p *pending) {
	n := p.reserved
	if n == nil {
		return
	}
	p.reserved = nil
	for _, r := range slices.Backward(s.state.reserves) {
		r.release(s.state, p.info, n)
	}
}

// errGone means that the pod to bind no longer exists.
var errGone = errors.New("the pod is gone")

// commit runs the preBinds and writes the binding.
func (s *Scheduler) commit(ctx context.Context, p *pending, node string) error {
	for _, step := range s.preBinds {
		if err := step.run(ctx, s.client, p.info.pod, node); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	p.writing.Lock() // no report of an earlier attempt may follow
	err := s.bind(ctx, p, node)
	p.writing.Unlock()
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

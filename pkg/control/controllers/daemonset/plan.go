package daemonset

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/history"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// burst is the maximum number of pods that one call creates, and the maximum that it deletes.
const burst = 500

// generationLabel is the label with the template's generation. Upstream still sets it for old clients.
const generationLabel = "pod-template-generation"

// Observed is the observed state.
type Observed struct {
	Set   *appsv1.DaemonSet
	Nodes []*corev1.Node
	history.Dependents
	// Wait returns the time until a failed pod on the node may be replaced.
	Wait func(node string) time.Duration
}

// Actions is what to do, in the order of the fields.
type Actions struct {
	history.Actions
	// Hash is the hash label of up-to-date pods. Relabel are the pods of duplicates of the current revision, which
	// get this label.
	Hash    string
	Relabel []*corev1.Pod
	// Run are the nodes on which to create a pod.
	Run    []string
	Delete []*corev1.Pod
	// Ended are the pods in Delete that failed or succeeded. They cause events and, if they failed, back-off.
	Ended []*corev1.Pod
	// Status is the status before pods are created and deleted.
	Status appsv1.DaemonSetStatus
}

// Plan computes one step. The set must not be terminating, and its selector must not be empty. Plan does not change o.
func Plan(o Observed, now time.Time) (Actions, error) {
	set := o.Set
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return Actions{}, err
	}
	data, err := history.Data(&set.Spec.Template)
	if err != nil {
		return Actions{}, err
	}
	p := &plan{set: set, now: now, wait: o.Wait, nodes: map[string]*node{}}
	p.a.Pods = engine.Claim(set, o.Owned, o.Orphans, selector, nil)
	p.a.Revisions = engine.Claim(set, o.OwnedRevisions, o.OrphanRevisions, selector, nil)
	history.Sort(p.a.Revisions.All)
	if !p.revise(data) {
		return p.a, nil
	}
	p.arrange(o.Nodes)
	p.manage()
	if len(p.a.Run)+len(p.a.Delete) == 0 && set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		if err := p.roll(); err != nil {
			return Actions{}, err
		}
	}
	p.forget()
	p.status()
	p.limit()
	return p.a, nil
}

type plan struct {
	set   *appsv1.DaemonSet
	now   time.Time
	wait  func(string) time.Duration
	nodes map[string]*node
	order []string // node names, sorted
	old   []*appsv1.ControllerRevision
	dups  []*appsv1.ControllerRevision
	a     Actions
}

type node struct {
	here      bool // the Node object exists
	run, stay bool
	pods      []*corev1.Pod // without ended pods that are being deleted
}

// revise determines the current revision. It returns false if a revision must be written first.
func (p *plan) revise(data []byte) bool {
	t := &p.set.Spec.Template
	current, old := history.Split(p.a.Revisions.All, t, data)
	p.old = old
	next := history.Next(p.old)
	if len(current) == 0 {
		hash := podstate.TemplateHash(t, p.set.Status.CollisionCount)
		p.a.Create = history.New(p.set, kind, t, data, next, appsv1.DefaultDaemonSetUniqueLabelKey, hash)
		return false
	}
	last := current[len(current)-1]
	if last.Revision < next || last.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == "" {
		p.a.Renumber, p.a.Number = labelled(last), max(next, last.Revision)
		return false
	}
	p.a.Hash = last.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	p.dups = current[:len(current)-1]
	same := map[string]bool{}
	for _, r := range p.dups {
		same[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	for _, pod := range p.a.Pods.All {
		if hash := pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]; hash != p.a.Hash && same[hash] {
			p.a.Relabel = append(p.a.Relabel, pod)
		}
	}
	return true
}

// labelled returns the revision with a hash label. As upstream, one without the label gets its name as the hash.
func labelled(r *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	if r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "" {
		return r
	}
	return engine.Changed(r, func(r *appsv1.ControllerRevision) {
		metav1.SetMetaDataLabel(&r.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, r.Name)
	})
}

func (p *plan) arrange(nodes []*corev1.Node) {
	fit := newEligibility(p.set)
	for _, n := range nodes {
		run, stay := fit.of(n)
		p.nodes[n.Name] = &node{here: true, run: run, stay: stay}
	}
	for _, pod := range p.a.Pods.All {
		name := target(pod)
		if name == "" || podstate.Ended(pod) && pod.DeletionTimestamp != nil {
			continue
		}
		n := p.nodes[name]
		if n == nil {
			n = &node{}
			p.nodes[name] = n
		}
		n.pods = append(n.pods, pod)
	}
	for _, n := range p.nodes {
		slices.SortFunc(n.pods, older)
	}
	p.order = slices.Sorted(maps.Keys(p.nodes))
}

func older(a, b *corev1.Pod) int {
	unbound := func(p *corev1.Pod) int {
		if p.Spec.NodeName == "" {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(unbound(a), unbound(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name))
}

func (p *plan) current(pod *corev1.Pod) bool {
	generation := p.set.Annotations[appsv1.DeprecatedTemplateGeneration]
	return pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == p.a.Hash ||
		generation != "" && pod.Labels[generationLabel] == generation || slices.Contains(p.a.Relabel, pod)
}

func (p *plan) available(pod *corev1.Pod) bool {
	ok, in := podstate.Available(pod, time.Duration(p.set.Spec.MinReadySeconds)*time.Second, p.now)
	p.again(in)
	return ok
}

func (p *plan) again(in time.Duration) {
	if in > 0 && (p.a.Again == 0 || in < p.a.Again) {
		p.a.Again = in
	}
}

// manage creates a pod on each eligible node without one, and deletes pods that have ended, are in excess, or are
// on nodes where they may not stay.
func (p *plan) manage() {
	for _, name := range p.order {
		switch n := p.nodes[name]; {
		case !n.here:
			// podgc deletes bound pods. Unbound pods would wait for their node forever.
			p.delete(n.pods, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" })
		case n.run && len(n.pods) == 0:
			p.a.Run = append(p.a.Run, name)
		case n.stay:
			p.prune(name, n)
		default:
			p.delete(n.pods, func(*corev1.Pod) bool { return true })
		}
	}
}

func (p *plan) delete(pods []*corev1.Pod, which func(*corev1.Pod) bool) {
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && which(pod) {
			p.a.Delete = append(p.a.Delete, pod)
		}
	}
}

// prune deletes ended and excess pods on a node whose pods may stay.
func (p *plan) prune(name string, n *node) {
	var running []*corev1.Pod
	for _, pod := range n.pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if in := p.wait(name); in > 0 {
				p.again(in)
				continue
			}
			p.a.Delete, p.a.Ended = append(p.a.Delete, pod), append(p.a.Ended, pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			p.a.Delete, p.a.Ended = append(p.a.Delete, pod), append(p.a.Ended, pod)
		default:
			running = append(running, pod)
		}
	}
	surges := p.surge(1) > 0
	switch {
	case !surges && len(running) > 1:
		p.keep(running)
	case surges && len(running) == 0 && n.run:
		p.a.Run = append(p.a.Run, name)
	case surges && len(running) > 1:
		p.pruneSurge(running)
	}
}

// keep deletes all pods except one, and returns it: the oldest ready pod, or else the oldest. Upstream always
// keeps the oldest.
func (p *plan) keep(pods []*corev1.Pod) *corev1.Pod {
	if len(pods) == 0 {
		return nil
	}
	i := max(slices.IndexFunc(pods, podstate.Ready), 0)
	p.a.Delete = append(append(p.a.Delete, pods[:i]...), pods[i+1:]...)
	return pods[i]
}

// pruneSurge keeps one new and one old pod. It deletes the old one if it is not ready, or once the new one is
// available.
func (p *plan) pruneSurge(running []*corev1.Pod) {
	var fresh, old []*corev1.Pod
	for _, pod := range running {
		if p.current(pod) {
			fresh = append(fresh, pod)
		} else {
			old = append(old, pod)
		}
	}
	next, last := p.keep(fresh), p.keep(old)
	if next != nil && last != nil && (!podstate.Ready(last) || p.available(next)) {
		p.a.Delete = append(p.a.Delete, last)
	}
}

// forget deletes duplicates of the current revision, and unused old revisions beyond the history limit.
func (p *plan) forget() {
	p.a.Forget = append(p.a.Forget, p.dups...)
	live := map[string]bool{}
	for _, pod := range p.a.Pods.All {
		live[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	limit := int32(10)
	if p.set.Spec.RevisionHistoryLimit != nil {
		limit = *p.set.Spec.RevisionHistoryLimit
	}
	// Revisions in use count against the limit, as in upstream.
	excess := len(p.old) - int(limit)
	for _, r := range p.old {
		if excess > 0 && r.DeletionTimestamp == nil && !live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] {
			p.a.Forget = append(p.a.Forget, r)
			excess--
		}
	}
}

func (p *plan) status() {
	s := p.set.Status.DeepCopy()
	s.ObservedGeneration = p.set.Generation
	s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled, s.NumberReady = 0, 0, 0, 0
	s.UpdatedNumberScheduled, s.NumberAvailable = 0, 0
	for _, n := range p.nodes {
		if !n.here {
			continue
		}
		if !n.run {
			if len(n.pods) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(n.pods) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		oldest := n.pods[0]
		if podstate.Ready(oldest) {
			s.NumberReady++
			if p.available(oldest) {
				s.NumberAvailable++
			}
		}
		if p.current(oldest) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	p.a.Status = *s
}

func (p *plan) limit() {
	p.a.More = len(p.a.Run) > burst || len(p.a.Delete) > burst
	p.a.Run = p.a.Run[:min(len(p.a.Run), burst)]
	p.a.Delete = p.a.Delete[:min(len(p.a.Delete), burst)]
	p.a.Ended = slices.DeleteFunc(p.a.Ended, func(pod *corev1.Pod) bool { return !slices.Contains(p.a.Delete, pod) })
}

// Pod returns the pod that a set runs on a node.
func Pod(set *appsv1.DaemonSet, hash, node string) *corev1.Pod {
	pod := podstate.FromTemplate(&set.Spec.Template, set, kind)
	pod.Spec.Tolerations = tolerated(&set.Spec.Template.Spec)
	pod.Spec.Affinity = onto(pod.Spec.Affinity, node)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	if n, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64); err == nil {
		pod.Labels[generationLabel] = strconv.FormatInt(n, 10)
	}
	return pod
}

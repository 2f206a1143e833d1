package statefulset

import (
	"maps"
	"slices"
	"strconv"
	"strings"
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

// Observed is the observed state.
type Observed struct {
	Set *appsv1.StatefulSet
	history.Dependents
}

// Actions is what to do, in the order of the fields.
type Actions struct {
	history.Actions
	// Run are pods to create, Repair pods whose identity labels must be set, Delete pods to delete.
	Run, Repair, Delete []*corev1.Pod
	// Status is the status before pods are created and deleted.
	Status appsv1.StatefulSetStatus
}

// Plan computes one step. It does not change o. The number of existing pods and burst bound its cost, not the
// number of replicas.
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
	p := &plan{set: set, now: now, members: map[int64]*corev1.Pod{}}
	if set.DeletionTimestamp != nil {
		p.current, p.update = set.Status.CurrentRevision, set.Status.UpdateRevision
		p.sort(o.Owned)
		p.status()
		return p.a, nil
	}
	p.a.Pods = engine.Claim(set, o.Owned, o.Orphans, selector, func(pod *corev1.Pod) bool {
		return Ordinal(set, pod.Name) >= 0
	})
	p.a.Revisions = engine.Claim(set, o.OwnedRevisions, o.OrphanRevisions, selector, nil)
	history.Sort(p.a.Revisions.All)
	if settled, err := p.revise(data); err != nil || !settled {
		return p.a, err
	}
	p.sort(p.a.Pods.All)
	if p.keep() && p.shrink() && set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
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
	set             *appsv1.StatefulSet
	now             time.Time
	current, update string                  // names of revisions
	template        *corev1.PodTemplateSpec // of the current revision
	members         map[int64]*corev1.Pod   // pods within the range, by ordinal
	ordered         []*corev1.Pod           // the members, highest ordinal first
	condemned       []*corev1.Pod           // pods outside the range, highest ordinal first
	a               Actions
}

// Ordinal returns the ordinal of the set's pod with that name, or -1 if it is not a pod of the set. "web-01" is
// not a pod of "web".
func Ordinal(set *appsv1.StatefulSet, pod string) int64 {
	number, ok := strings.CutPrefix(pod, set.Name+"-")
	if !ok {
		return -1
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != number {
		return -1
	}
	return n
}

// bounds returns the set's range of ordinals, from first up to but not including end.
func (p *plan) bounds() (first, end int64) {
	if o := p.set.Spec.Ordinals; o != nil {
		first = int64(o.Start)
	}
	return first, first + p.replicas()
}

func (p *plan) replicas() int64 {
	if p.set.Spec.Replicas == nil {
		return 1
	}
	return int64(*p.set.Spec.Replicas)
}

func (p *plan) partition() int64 {
	first, _ := p.bounds()
	if r := p.set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return first + int64(*r.Partition)
	}
	return first
}

// inOrder reports whether pods are created and deleted one at a time.
func (p *plan) inOrder() bool {
	return p.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// revise determines the revisions. It returns false if the template's revision must be written first.
func (p *plan) revise(data []byte) (bool, error) {
	t, all := &p.set.Spec.Template, p.a.Revisions.All
	var same *appsv1.ControllerRevision
	if current, _ := history.Split(all, t, data); len(current) > 0 {
		same = current[len(current)-1]
	}
	switch {
	case same == nil:
		var collisions int32
		if c := p.set.Status.CollisionCount; c != nil {
			collisions = *c
		}
		p.a.Create = history.New(p.set, kind, t, data, history.Next(all), history.HashLabel, history.Hash(data, collisions))
		return false, nil
	case same != all[len(all)-1]:
		p.a.Renumber, p.a.Number = same, history.Next(all)
		return false, nil
	}
	p.update, p.current, p.template = same.Name, same.Name, t
	for _, r := range all {
		if r.Name == p.set.Status.CurrentRevision && r != same {
			was, err := history.Template(r)
			if err != nil {
				return false, err
			}
			p.current, p.template = r.Name, was
		}
	}
	return true, nil
}

func (p *plan) sort(pods []*corev1.Pod) {
	first, end := p.bounds()
	beyond := map[int64]*corev1.Pod{}
	for _, pod := range pods {
		switch n := Ordinal(p.set, pod.Name); {
		case n >= first && n < end:
			p.members[n] = pod
		case n >= 0:
			beyond[n] = pod
		}
	}
	descending := func(of map[int64]*corev1.Pod) []*corev1.Pod {
		out := make([]*corev1.Pod, 0, len(of))
		for _, n := range slices.Sorted(maps.Keys(of)) {
			out = append(out, of[n])
		}
		slices.Reverse(out)
		return out
	}
	p.ordered, p.condemned = descending(p.members), descending(beyond)
}

func (p *plan) available(pod *corev1.Pod) bool {
	ok, in := podstate.Available(pod, time.Duration(p.set.Spec.MinReadySeconds)*time.Second, p.now)
	if in > 0 && (p.a.Again == 0 || in < p.a.Again) {
		p.a.Again = in
	}
	return ok && pod.DeletionTimestamp == nil
}

func runs(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && podstate.Ready(pod) }

func revision(pod *corev1.Pod) string { return pod.Labels[appsv1.StatefulSetRevisionLabel] }

func (p *plan) delete(pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil {
		p.a.Delete = append(p.a.Delete, pod)
	}
}

// keep creates missing pods and replaces ended ones. It returns false if pod management is ordered and a pod is
// not available. Nothing else may be done then.
func (p *plan) keep() bool {
	first, end := p.bounds()
	for n := first; n < end; n++ {
		pod := p.members[n]
		switch {
		case pod == nil && len(p.a.Run) == burst:
			p.a.More = true
			return true
		case pod == nil:
			p.a.Run = append(p.a.Run, p.pod(n))
		case podstate.Ended(pod):
			p.delete(pod)
		case p.inOrder() && (!runs(pod) || !p.available(pod)):
		default:
			if pod.Labels[appsv1.StatefulSetPodNameLabel] != pod.Name {
				p.a.Repair = append(p.a.Repair, pod)
			}
			continue
		}
		if p.inOrder() {
			return false
		}
	}
	return true
}

// shrink deletes the pods outside the range, highest ordinal first. It returns false if later steps must wait.
func (p *plan) shrink() bool {
	if !p.inOrder() {
		for _, pod := range p.condemned {
			p.delete(pod)
		}
		return true
	}
	if len(p.condemned) == 0 {
		return true
	}
	// All pods within the range are available. An unavailable pod outside it may be deleted only if all lower pods
	// are available, or if it has ended, because an ended pod never becomes available. Upstream waits for it,
	// forever if a lower pod has ended too.
	last := p.condemned[0]
	if last.DeletionTimestamp == nil &&
		(podstate.Ended(last) || runs(last) && p.available(last) || last == p.lowestUnavailable()) {
		p.delete(last)
	}
	return false
}

func (p *plan) lowestUnavailable() *corev1.Pod {
	for _, pod := range slices.Backward(p.condemned) {
		if !p.available(pod) {
			return pod
		}
	}
	return nil
}

// pod returns the new pod for an ordinal. Below the partition it has the current revision, otherwise the update
// revision.
func (p *plan) pod(n int64) *corev1.Pod {
	t, revision := &p.set.Spec.Template, p.update
	if p.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && n < p.partition() {
		t, revision = p.template, p.current
	}
	pod := podstate.FromTemplate(t, p.set, kind)
	pod.Name = p.set.Name + "-" + strconv.FormatInt(n, 10)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, p.set.Spec.ServiceName
	mountClaims(p.set, pod, n)
	identify(p.set, pod)
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	return pod
}

func identify(set *appsv1.StatefulSet, pod *corev1.Pod) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.FormatInt(Ordinal(set, pod.Name), 10)
}

// forget deletes unused old revisions beyond the history limit.
func (p *plan) forget() {
	live := map[string]bool{p.current: true, p.update: true}
	for _, pod := range p.a.Pods.All {
		live[revision(pod)] = true
	}
	limit := int32(10)
	if p.set.Spec.RevisionHistoryLimit != nil {
		limit = *p.set.Spec.RevisionHistoryLimit
	}
	p.a.Forget = history.Excess(p.a.Revisions.All, limit, func(r *appsv1.ControllerRevision) bool { return live[r.Name] })
}

func (p *plan) status() {
	s := p.set.Status.DeepCopy()
	s.ObservedGeneration, s.CurrentRevision, s.UpdateRevision = p.set.Generation, p.current, p.update
	if s.CollisionCount == nil {
		s.CollisionCount = new(int32)
	}
	s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas = 0, 0, 0, 0, 0
	for _, pod := range slices.Concat(p.ordered, p.condemned) {
		s.Replicas++
		if runs(pod) {
			s.ReadyReplicas++
			if ok, _ := podstate.Available(pod, time.Duration(p.set.Spec.MinReadySeconds)*time.Second, p.now); ok {
				s.AvailableReplicas++
			}
		}
		p.available(pod) // records when it becomes available
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revision(pod) == p.current {
			s.CurrentReplicas++
		}
		if revision(pod) == p.update {
			s.UpdatedReplicas++
		}
	}
	if want := int32(p.replicas()); s.UpdatedReplicas == want && s.ReadyReplicas == want && s.Replicas == want {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
	p.a.Status = *s
}

func (p *plan) limit() {
	p.a.More = p.a.More || len(p.a.Delete) > burst
	p.a.Delete = p.a.Delete[:min(len(p.a.Delete), burst)]
}

package replicaset

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// burst is the maximum number of pods that one call creates or deletes.
const burst = 500

// Observed is the observed state.
type Observed struct {
	Set *appsv1.ReplicaSet
	// Owned are the pods that the set controls. Orphans are the pods in its namespace without a controller.
	Owned, Orphans []*corev1.Pod
	// OnNode counts the active pods on each node that belong to the same deployment.
	OnNode map[string]int
}

// Actions is what to do, in the order of the fields.
type Actions struct {
	engine.Claimed[*corev1.Pod]
	Delete []*corev1.Pod
	Create int
	// Status is the status before Create and Delete take effect.
	Status appsv1.ReplicaSetStatus
	// Again is the time until a ready pod becomes available, 0 if none is waiting.
	Again time.Duration
	// More means that the burst limit left work for another call.
	More bool
}

// Plan computes the actions. It does not change o.
func Plan(o Observed, now time.Time) (Actions, error) {
	selector, err := metav1.LabelSelectorAsSelector(o.Set.Spec.Selector)
	if err != nil {
		return Actions{}, err
	}
	var a Actions
	var mine, terminating []*corev1.Pod
	orphans := slices.DeleteFunc(slices.Clone(o.Orphans), podstate.Ended)
	a.Claimed = engine.Claim(o.Set, o.Owned, orphans, selector, nil)
	for _, p := range a.All {
		switch {
		case podstate.Active(p):
			mine = append(mine, p)
		case p.DeletionTimestamp != nil && !podstate.Ended(p):
			terminating = append(terminating, p)
		}
	}
	if o.Set.DeletionTimestamp == nil {
		want := int(replicas(o.Set))
		switch missing := want - len(mine); {
		case missing > 0:
			a.Create = min(missing, burst)
			a.More = missing > burst
		case missing < 0:
			excess := -missing
			a.More = excess > burst
			a.Delete = victims(mine, min(excess, burst), o.OnNode, now)
		}
	}
	a.Status, a.Again = status(o.Set, mine, terminating, now)
	return a, nil
}

func replicas(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

func status(rs *appsv1.ReplicaSet, pods, terminating []*corev1.Pod,
	now time.Time) (s appsv1.ReplicaSetStatus, again time.Duration) {
	s = *rs.Status.DeepCopy()
	s.ObservedGeneration = rs.Generation
	s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = int32(len(pods)), 0, 0, 0
	s.TerminatingReplicas = new(int32(len(terminating)))
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	minReady := time.Duration(rs.Spec.MinReadySeconds) * time.Second
	for _, p := range pods {
		if template.Matches(labels.Set(p.Labels)) {
			s.FullyLabeledReplicas++
		}
		if !podstate.Ready(p) {
			continue
		}
		s.ReadyReplicas++
		if ok, in := podstate.Available(p, minReady, now); ok {
			s.AvailableReplicas++
		} else if in > 0 && (again == 0 || in < again) {
			again = in
		}
	}
	return s, again
}

func withFailure(s appsv1.ReplicaSetStatus, reason string, err error, now time.Time) appsv1.ReplicaSetStatus {
	i := slices.IndexFunc(s.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	switch {
	case err == nil && i >= 0:
		s.Conditions = slices.Delete(slices.Clone(s.Conditions), i, i+1)
	case err != nil && i < 0:
		s.Conditions = append(slices.Clone(s.Conditions), appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: err.Error(),
		})
	}
	return s
}

// victims picks the n pods to delete, in upstream's order: unbound, not running, not ready, cheap to delete, with
// siblings on the node, ready for a short time, often restarted, young.
func victims(pods []*corev1.Pod, n int, onNode map[string]int, now time.Time) []*corev1.Pod {
	if n >= len(pods) {
		return pods
	}
	ranked := slices.Clone(pods)
	slices.SortStableFunc(ranked, func(a, b *corev1.Pod) int {
		return cmp.Or(
			first(a.Spec.NodeName == "", b.Spec.NodeName == ""),
			cmp.Compare(phaseRank[a.Status.Phase], phaseRank[b.Status.Phase]),
			first(!podstate.Ready(a), !podstate.Ready(b)),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			cmp.Compare(onNode[b.Spec.NodeName], onNode[a.Spec.NodeName]),
			byAge(readySince(a), readySince(b), a, b, now),
			cmp.Compare(restarts(b), restarts(a)),
			byAge(a.CreationTimestamp, b.CreationTimestamp, a, b, now),
		)
	})
	return ranked[:n]
}

var phaseRank = map[corev1.PodPhase]int{corev1.PodPending: 0, "": 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func deletionCost(p *corev1.Pod) int64 {
	cost, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return cost
}

func readySince(p *corev1.Pod) metav1.Time {
	if c := podstate.Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

func restarts(p *corev1.Pod) int32 {
	var most int32
	for _, c := range p.Status.ContainerStatuses {
		most = max(most, c.RestartCount)
	}
	return most
}

// byAge sorts unknown times first, then younger pods, by powers of two of their age. Pods of about the same age
// are sorted by UID, which picks at random (KEP-2185).
func byAge(a, b metav1.Time, pa, pb *corev1.Pod, now time.Time) int {
	if a.IsZero() || b.IsZero() {
		return first(a.IsZero(), b.IsZero())
	}
	if a.Equal(&b) {
		return 0
	}
	if d := cmp.Compare(ageBucket(a, now), ageBucket(b, now)); d != 0 {
		return d
	}
	return cmp.Compare(pa.UID, pb.UID)
}

func ageBucket(t metav1.Time, now time.Time) int64 {
	age := now.Sub(t.Time)
	if age <= 0 {
		return -1
	}
	return int64(math.Log2(float64(age)))
}

package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Pods that name a PodGroup in spec.schedulingGroup are scheduled together (KEP-4671). With the policy gang, either
// at least minCount pods of the group have nodes, including those that already have one, or no further pod gets one.

// gangWriters is the number of concurrent binding writes of one gang.
const gangWriters = 16

// gangs holds the pod groups. It is guarded by the scheduler's lock.
type gangs struct {
	read ctrlclient.Reader
	// start starts the watch of pod groups. synced reports whether all are known. If start is nil, they are.
	start  func()
	synced func() bool
	// assigned is the number of a group's pods that have nodes.
	assigned map[types.NamespacedName]int
}

func newGangs(read ctrlclient.Reader) *gangs {
	return &gangs{read: read, assigned: map[types.NamespacedName]int{}}
}

// gangOf returns the pod's group. It is empty if the pod has none.
func gangOf(p *corev1.Pod) (key types.NamespacedName) {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		key = types.NamespacedName{Namespace: p.Namespace, Name: *g.PodGroupName}
	}
	return key
}

func (g *gangs) count(p *podInfo, sign int) {
	if p.gang.Name == "" {
		return
	}
	if g.assigned[p.gang] += sign; g.assigned[p.gang] == 0 {
		delete(g.assigned, p.gang)
	}
}

// least returns the minCount of a gang; 0 if its pods are scheduled one by one. reason says why it is unknown.
func (g *gangs) least(key types.NamespacedName) (least int, reason string) {
	if g.start != nil {
		g.start()
		if !g.synced() {
			return 0, "waiting until the pod groups are known"
		}
	}
	var group schedulingv1beta1.PodGroup
	if err := g.read.Get(context.Background(), key, &group); err != nil {
		if ctrlclient.IgnoreNotFound(err) == nil {
			return 0, fmt.Sprintf("waiting for pod group %q, which does not exist", key.Name)
		}
		return 0, err.Error()
	}
	if gang := group.Spec.SchedulingPolicy.Gang; gang != nil {
		return int(gang.MinCount), ""
	}
	return 0, ""
}

// explain returns what a group waits for. It is empty if the pods are scheduled one by one.
func (g *gangs) explain(key types.NamespacedName, waiting int) string {
	if key.Name == "" {
		return ""
	}
	least, reason := g.least(key)
	if reason != "" {
		return reason
	}
	if least == 0 {
		return ""
	}
	return fmt.Sprintf("pod group %q needs nodes for at least %d pods at once: %d have one, and %d wait", key.Name, least,
		g.assigned[key], waiting)
}

// decideTogether schedules all waiting pods of p's gang and returns the writes, or nil if p is scheduled alone.
func (s *Scheduler) decideTogether(p *pending) func(context.Context) {
	key := p.info.gang
	least, reason := s.state.gangs.least(key)
	if reason != "" {
		return s.hold(p, reason)
	}
	if least == 0 {
		return nil
	}
	members := append(s.queue.members(key), p)
	need := least - s.state.gangs.assigned[key]
	if len(members) < need {
		return s.hold(p,
			fmt.Sprintf("waiting for more pods of pod group %q: it is scheduled once there are %d, and %d are missing", key.Name,
				least, need-len(members)))
	}
	slices.SortFunc(members, func(a, b *pending) int {
		switch h := (activeHeap{a, b}); {
		case h.Less(0, 1):
			return -1
		case h.Less(1, 0):
			return 1
		}
		return 0
	})
	t := &together{s: s, members: members, least: least}
	for _, m := range members {
		if m != p {
			s.queue.claim(m)
		}
	}
	defer t.recovered(p)
	for i, m := range members {
		if len(t.placed)+len(members)-i < need {
			break // the minimum is out of reach
		}
		t.try(m)
	}
	if len(t.placed) >= need {
		return t.commit(key)
	}
	return t.fail(key, need)
}

type together struct {
	s       *Scheduler
	members []*pending
	least   int // the number of placed pods that the gang needs
	placed  []*pending
	failed  []*failedMember
	done    bool
}

type failedMember struct {
	*pending
	failure *failure // nil: reserving failed, see reason
	reason  string
}

func (t *together) try(m *pending) {
	t.s.reconsider(m)
	n, f := t.s.state.pick(m.info)
	if f != nil {
		f.refused = slices.Clone(f.refused) // copy: the next attempt reuses the slice
		t.failed = append(t.failed, &failedMember{pending: m, failure: f, reason: f.message("")})
		return
	}
	if err := t.s.reserve(m, n); err != nil {
		t.failed = append(t.failed, &failedMember{
			pending: m, reason: fmt.Sprintf("could not reserve on node %s: %s", n.name, err),
		})
		return
	}
	t.placed = append(t.placed, m)
}

// commit returns a function that writes the bindings and reports the pods beyond the minimum without a node.
func (t *together) commit(key types.NamespacedName) func(context.Context) {
	s := t.s
	var writes []func(context.Context)
	for _, m := range t.placed {
		if promised := s.state.clearNomination(m.info.pod.UID); promised != nil && promised != m.reserved {
			s.help(promised)
		}
		writes = append(writes, s.binding(m, m.reserved))
	}
	for _, m := range t.failed {
		if m.failure == nil {
			writes = append(writes, s.couldNotReserve(m.pending, m.reason))
		} else {
			writes = append(writes, s.fail(m.pending, m.failure))
		}
	}
	t.done = true
	return s.inParallel(writes, func(ctx context.Context) {
		s.mu.Lock()
		bound := s.state.gangs.assigned[key] // excludes pods whose binding failed
		s.mu.Unlock()
		if bound >= t.least {
			s.reportGang(ctx, key, "")
		}
	})
}

// fail returns a function that reports why no pod of the gang got a node.
func (t *together) fail(key types.NamespacedName, need int) func(context.Context) {
	s := t.s
	t.release()
	first := t.failed[0]
	message := fmt.Sprintf("pod group %q needs nodes for %d more pods at once, and found nodes for %d; pod %s: %s",
		key.Name, need, len(t.placed), first.info.pod.Name, first.reason)
	refused := map[*pending]*failedMember{}
	for _, m := range t.failed {
		refused[m.pending] = m
	}
	var writes []func(context.Context)
	for _, m := range t.failed {
		if m.failure != nil {
			writes = append(writes, s.unusable(m.failure))
		}
	}
	// While volumes are provisioned for some pods, the others keep their nominations.
	wait := s.hold
	if !slices.ContainsFunc(t.failed, func(m *failedMember) bool {
		return m.failure == nil || !s.expect(m.pending, m.failure)
	}) {
		wait = s.wait
	}
	for _, m := range t.members {
		f := refused[m]
		m.wide = f != nil && (f.failure == nil || f.failure.wide())
		writes = append(writes, wait(m, message))
	}
	t.done = true
	return s.inParallel(writes, func(ctx context.Context) { s.reportGang(ctx, key, message) })
}

// release undoes the reservations. It retries no pending pods, because the state is the same as before the attempt.
func (t *together) release() {
	for _, m := range slices.Backward(t.placed) {
		t.s.release(m)
	}
}

// recovered puts the pods into back-off after the attempt panicked, except p, which the caller handles.
func (t *together) recovered(p *pending) {
	if t.done {
		return
	}
	t.release()
	for _, m := range t.members {
		if m != p && m.where == underway {
			t.s.backOff(m)
		}
	}
}

// inParallel returns a function that runs the writes, at most gangWriters at a time, and then last.
func (s *Scheduler) inParallel(writes []func(context.Context), last func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		var wg sync.WaitGroup
		slots := make(chan struct{}, gangWriters)
		for _, write := range writes {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				_ = s.guard.Do("write", func() { write(ctx) })
			})
		}
		wg.Wait()
		last(ctx)
	}
}

// hold makes a pod wait without a nomination, and returns a function that reports the message.
func (s *Scheduler) hold(p *pending, message string) func(context.Context) {
	s.promise(p.info, nil)
	return s.wait(p, message)
}

// wait makes a pod wait, and returns a function that reports the message.
func (s *Scheduler) wait(p *pending, message string) func(context.Context) {
	s.metrics.unschedulable.count(p)
	p.attempts++
	p.failed = time.Now()
	s.queue.put(p)
	pod := p.info.pod
	if nominated := s.state.nominated(pod.UID); p.report != nil || message != p.reported ||
		pod.Status.NominatedNodeName != nominated {
		p.report = &report{pod, message, nominated}
	}
	again := message == p.reported
	p.reported = message
	return func(ctx context.Context) {
		if !again {
			s.event(pod, corev1.EventTypeWarning, "FailedScheduling", "%s", message)
		}
		s.report(ctx, p)
	}
}

// reportGang sets a group's condition: False with why until its minimum has nodes, then True forever.
func (s *Scheduler) reportGang(ctx context.Context, key types.NamespacedName, why string) {
	var group schedulingv1beta1.PodGroup
	if s.client.Cache().Get(ctx, key, &group) != nil {
		return
	}
	want := metav1.Condition{
		Type:               schedulingv1beta1.PodGroupInitiallyScheduled,
		Status:             metav1.ConditionTrue,
		Reason:             "Scheduled",
		ObservedGeneration: group.Generation,
	}
	if why != "" {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonUnschedulable, why
	}
	conditions := slices.Clone(group.Status.Conditions)
	if meta.IsStatusConditionTrue(conditions, want.Type) || !meta.SetStatusCondition(&conditions, want) {
		return
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": group.UID},
		"status":   map[string]any{"conditions": []any{*meta.FindStatusCondition(conditions, want.Type)}},
	})
	if err != nil {
		panic(err) // text and times always encode
	}
	of := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := s.client.Status().Patch(ctx, of, ctrlclient.RawPatch(types.StrategicMergePatchType, patch)); err != nil &&
		ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		s.log.Warn("could not write status of pod group", "group", key.String(), "error", err)
	}
}

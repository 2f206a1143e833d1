package scheduler

import (
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/control/heartbeat"
)

func now() time.Time { return time.Now() }

type nodeHandler struct{ s *Scheduler }

func (h nodeHandler) OnAdd(o any, _ bool) { h.s.handle(o, func() { h.add(o) }) }
func (h nodeHandler) OnUpdate(was, o any) { h.s.handle(o, func() { h.update(was, o) }) }
func (h nodeHandler) OnDelete(o any)      { h.s.handle(o, func() { h.remove(o) }) }

func (s *Scheduler) handle(o any, handle func()) {
	_ = s.guard.Do("event", handle, "object", named{o})
}

type named struct{ object any }

// LogValue implements slog.LogValuer.
func (n named) LogValue() slog.Value {
	if o, ok := n.object.(ctrlclient.Object); ok {
		return slog.StringValue(o.GetNamespace() + "/" + o.GetName())
	}
	return slog.StringValue("")
}

func (h nodeHandler) add(o any) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.expected(h.s.state.setNode(node))
	h.s.heartbeats.heard.Node(nil, node, now())
	h.s.help(nil)
}

func (h nodeHandler) update(was, is any) {
	a, ok1 := was.(*corev1.Node)
	b, ok2 := is.(*corev1.Node)
	if !ok1 || !ok2 {
		return
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	n := h.s.state.setNode(b)
	h.s.hear(b.Name, func(heard *heartbeat.Record, at time.Time) { heard.Node(a, b, at) })
	if a.Spec.Unschedulable != b.Spec.Unschedulable || !equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints) ||
		!equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) || !equality.Semantic.DeepEqual(a.Labels,
		b.Labels) ||
		!slices.Equal(a.Status.DeclaredFeatures, b.Status.DeclaredFeatures) || a.Annotations[storage.DirectoryAnnotation] !=
		b.Annotations[storage.DirectoryAnnotation] {
		h.s.help(n)
	}
}

func (h nodeHandler) remove(o any) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	if node, ok := o.(*corev1.Node); ok {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.state.removeNode(node.Name)
		h.s.heartbeats.heard.Node(node, nil, now())
		h.s.helpWide() // its pods no longer count in its zone
	}
}

// help retries the pods that may fit after a change of node n. Nil means a change of any node.
func (s *Scheduler) help(n *nodeInfo) {
	if len(s.queue.unschedulable) == 0 {
		return
	}
	at := now()
	for p := range s.queue.unschedulable {
		if n == nil || p.wide || s.state.mayFit(p.info, n) {
			s.queue.retry(p, at)
		}
	}
}

// helpWide retries the pods whose placement depends on other pods.
func (s *Scheduler) helpWide() {
	if s.queue.wide == 0 {
		return
	}
	at := now()
	for p := range s.queue.unschedulable {
		if p.wide {
			s.queue.retry(p, at)
		}
	}
}

// mayFit reports whether the pod passes the filters that depend only on this node.
func (s *state) mayFit(p *podInfo, n *nodeInfo) bool {
	if n.node == nil {
		return false
	}
	c := s.cycle(p)
	for i := range p.profile.filters {
		if f := &p.profile.filters[i]; !f.wide && (f.prepare == nil || f.prepare(c)) && f.refuse(c, n) != nil {
			return false
		}
	}
	return true
}

type podHandler struct{ s *Scheduler }

func (h podHandler) OnAdd(o any, _ bool) { h.s.handle(o, func() { h.take(o) }) }
func (h podHandler) OnUpdate(_, o any)   { h.s.handle(o, func() { h.take(o) }) }
func (h podHandler) OnDelete(o any)      { h.s.handle(o, func() { h.remove(o) }) }

func (h podHandler) remove(o any) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.forget(pod)
}

// forget removes a deleted or terminated pod.
func (s *Scheduler) forget(pod *corev1.Pod) {
	s.late.cancel(pod.UID)
	delete(s.state.gated, pod.UID)
	delete(s.state.foreign, pod.UID)
	s.state.volumes.release(pod.UID)
	s.state.devices.release(pod.UID)
	if p := s.queue.pods[pod.UID]; p != nil {
		s.queue.remove(p)
	}
	if n := s.state.clearNomination(pod.UID); n != nil {
		s.help(n)
	}
	if p := s.state.pods[pod.UID]; p != nil {
		n := p.node
		s.state.remove(p)
		s.help(n)
	}
}

func (h podHandler) take(o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	s := h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		s.forget(pod)
	case pod.Spec.NodeName != "":
		s.bound(pod)
	case pod.DeletionTimestamp != nil:
		s.forget(pod)
	case s.state.profileOf(pod) != nil:
		s.wanted(pod)
	default:
		s.state.foreign[pod.UID] = pod
	}
}

// bound handles a pod that has a node, whichever scheduler bound it.
func (s *Scheduler) bound(pod *corev1.Pod) {
	delete(s.state.gated, pod.UID) // the first event of the pod may already be without gates
	delete(s.state.foreign, pod.UID)
	s.state.volumes.release(pod.UID)
	s.state.devices.release(pod.UID)
	if p := s.queue.pods[pod.UID]; p != nil {
		if p.reserved != nil && p.reserved.name == pod.Spec.NodeName {
			p.reserved = nil // keep the reservation, whatever the binding call returns
		}
		if p.where != underway {
			s.queue.remove(p)
		}
	}
	promised := s.state.clearNomination(pod.UID)
	p := s.state.pods[pod.UID]
	switch {
	case p != nil && p.node.name == pod.Spec.NodeName && p.assumed:
		p.assumed = false
		if s.state.update(p, pod) { // the pod changed during the binding
			s.help(s.state.nodes[pod.Spec.NodeName])
		}
	case p != nil && p.node.name == pod.Spec.NodeName:
		ends := p.pod.DeletionTimestamp == nil && pod.DeletionTimestamp != nil // no longer counts for topology spread
		if s.state.update(p, pod) {
			s.help(s.state.nodes[pod.Spec.NodeName]) // it may request less now, or its labels match other pods' terms
		} else if ends {
			s.helpWide()
		}
		return
	default:
		if p != nil {
			n := p.node
			s.state.remove(p)
			s.help(n)
		}
		s.state.assign(newPodInfo(pod), pod.Spec.NodeName)
	}
	if promised != nil && promised.name != pod.Spec.NodeName {
		s.help(promised)
	}
	s.helpWide()
}

// wanted handles a pod without a node.
func (s *Scheduler) wanted(pod *corev1.Pod) {
	p := s.queue.pods[pod.UID]
	if len(pod.Spec.SchedulingGates) > 0 { // the API server reports the gates in the pod's status
		s.gate(pod)
		return
	}
	delete(s.state.gated, pod.UID)
	if p == nil {
		if s.state.pods[pod.UID] != nil {
			return // already assumed
		}
		p = &pending{info: s.state.info(pod), since: now()}
		s.queue.add(p)
		s.renominate(p.info)
		return
	}
	was := p.info.pod
	if p.where == underway {
		p.newer = pod
		return
	}
	changed := was.Status.NominatedNodeName != pod.Status.NominatedNodeName
	if sameNeeds(was, pod) && slices.Equal(was.Spec.Tolerations, pod.Spec.Tolerations) &&
		resourceclaim.PodStatusEqual(was.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
		if p.info.pod = pod; changed && s.renominate(p.info) {
			s.queue.retry(p, now()) // another client's write, perhaps the last event, or a late event of our own
		}
		return
	}
	nominated := s.state.nominations[pod.UID]
	p.info = s.state.info(pod)
	if s.state.nominate(p.info, nominated); changed {
		s.renominate(p.info)
	}
	s.queue.retry(p, now())
}

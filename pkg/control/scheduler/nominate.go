package scheduler

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// A pod is nominated to a node where it is expected (KEP-5278): it preempts others there, its volumes are being made
// for the node, or another component, such as a cluster autoscaler, has written it to the pod's status. Its resources
// are kept free from pods that are not more important, and the node is tried first. While volumes or devices are waited
// for, the status says where the pod is going.

// nominate reserves capacity on a known node for a pod that is expected there; a nil or unknown node clears the
// nomination.
func (s *state) nominate(p *podInfo, n *nodeInfo) {
	s.clearNomination(p.pod.UID)
	if n == nil || n.at < 0 {
		return
	}
	if n.nominated == nil {
		n.nominated = map[types.UID]*podInfo{}
	}
	n.nominated[p.pod.UID] = p
	s.nominations[p.pod.UID] = n
}

// clearNomination removes a pod's nomination and returns the node it was for, or nil.
func (s *state) clearNomination(uid types.UID) *nodeInfo {
	n := s.nominations[uid]
	if n != nil {
		delete(n.nominated, uid)
		delete(s.nominations, uid)
	}
	return n
}

// nominated returns the name of the node to which a pod is nominated, "" for none.
func (s *state) nominated(uid types.UID) string {
	if n := s.nominations[uid]; n != nil {
		return n.name
	}
	return ""
}

// promise nominates a pod to a node, or with nil to none, and retries the pods that this may help where it was
// nominated before. It reports whether that was elsewhere.
func (s *Scheduler) promise(p *podInfo, n *nodeInfo) (changed bool) {
	was := s.state.nominations[p.pod.UID]
	s.state.nominate(p, n)
	if changed = was != s.state.nominations[p.pod.UID]; changed && was != nil {
		s.help(was)
	}
	return changed
}

// renominate nominates a pod to the node that its status says, written by others or before a restart. It reports
// whether that is another one than before.
func (s *Scheduler) renominate(p *podInfo) (changed bool) {
	return s.promise(p, s.state.nodes[p.pod.Status.NominatedNodeName])
}

// gate nominates a pod with scheduling gates to the node that its status says, which may not be there yet.
func (s *Scheduler) gate(pod *corev1.Pod) {
	if pod.Status.NominatedNodeName != "" {
		s.state.gated[pod.UID] = s.state.info(pod)
		s.renominate(s.state.gated[pod.UID])
	} else if was := s.state.gated[pod.UID]; was != nil {
		delete(s.state.gated, pod.UID)
		s.promise(was, nil)
	}
}

// expected nominates the pods to a new node for which it was made.
func (s *Scheduler) expected(n *nodeInfo) {
	expect := func(p *podInfo) {
		if p.pod.Status.NominatedNodeName == n.name && s.state.nominations[p.pod.UID] == nil {
			s.state.nominate(p, n)
		}
	}
	for _, p := range s.queue.pods {
		if p.where != underway {
			expect(p.info)
		}
	}
	for _, p := range s.state.gated {
		expect(p)
	}
}

// expect nominates a pod that failed to the node for which its volumes are being made, if nothing but them keeps it
// from there: claims, which say the node, are written by users. It reports whether it did.
func (s *Scheduler) expect(p *pending, f *failure) bool {
	v := f.cycle.volumes
	if v == nil || v.selected == "" {
		return false
	}
	n := s.state.nodes[v.selected]
	if n == nil || n.node == nil || !f.onlyVolumes(n) {
		return false
	}
	p.expects = true
	s.promise(p.info, n)
	return true
}

// onlyVolumes reports whether the pod would fit on a node if its volumes were there.
func (f *failure) onlyVolumes(n *nodeInfo) bool {
	return !slices.ContainsFunc(f.active, func(a *filter) bool { return a.name != volumeBinding && !a.check(f.cycle, n) })
}

// reconsider ends the nomination of a pod whose volumes are no longer being made for the node: the provisioner could
// not.
func (s *Scheduler) reconsider(p *pending) {
	if !p.expects {
		return
	}
	p.expects = false
	if v := s.state.volumes.look(p.info); v.wrong != "" || len(v.delayed) == 0 {
		return
	}
	s.promise(p.info, nil)
}

// announce writes to the status of a pod where it is going. It is not worth a retry.
func (s *Scheduler) announce(ctx context.Context, p *pending, node string) {
	p.writing.Lock()
	defer p.writing.Unlock()
	s.mu.Lock()
	pod := p.info.pod
	s.mu.Unlock()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"nominatedNodeName": node},
	})
	if err != nil {
		panic(err) // text
	}
	p.wrote = true
	if err := s.client.Status().
		Patch(ctx, reference(pod), ctrlclient.RawPatch(types.StrategicMergePatchType, patch)); err != nil &&
		!apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.log.Warn("could not write pod status", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
}

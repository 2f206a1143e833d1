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

// A pod is nominated to the node where it is expected (KEP-5278): it preempts pods there, its volumes are being
// provisioned for the node, or another component such as a cluster autoscaler wrote the node into the pod's status.
// Its resources are reserved against pods of lower priority, and the node is tried first. While the pod waits for
// volumes or devices, its status shows the node.

// nominate reserves capacity on a node for a pod. A nil or unknown node clears the nomination.
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

// clearNomination removes a pod's nomination and returns its node, or nil.
func (s *state) clearNomination(uid types.UID) *nodeInfo {
	n := s.nominations[uid]
	if n != nil {
		delete(n.nominated, uid)
		delete(s.nominations, uid)
	}
	return n
}

func (s *state) nominated(uid types.UID) string {
	if n := s.nominations[uid]; n != nil {
		return n.name
	}
	return ""
}

// promise nominates a pod to n, which may be nil, and retries pods that may fit on its former node.
func (s *Scheduler) promise(p *podInfo, n *nodeInfo) (changed bool) {
	was := s.state.nominations[p.pod.UID]
	s.state.nominate(p, n)
	if changed = was != s.state.nominations[p.pod.UID]; changed && was != nil {
		s.help(was)
	}
	return changed
}

// renominate nominates a pod to the node in its status, and reports whether the nomination changed.
func (s *Scheduler) renominate(p *podInfo) (changed bool) {
	return s.promise(p, s.state.nodes[p.pod.Status.NominatedNodeName])
}

// gate nominates a pod with scheduling gates to the node in its status. The node may not exist yet.
func (s *Scheduler) gate(pod *corev1.Pod) {
	if pod.Status.NominatedNodeName != "" {
		s.state.gated[pod.UID] = s.state.info(pod)
		s.renominate(s.state.gated[pod.UID])
	} else if was := s.state.gated[pod.UID]; was != nil {
		delete(s.state.gated, pod.UID)
		s.promise(was, nil)
	}
}

// expected nominates to a new node the pods that have it in their status.
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

// expect nominates a failed pod to the node for which its volumes are being provisioned, if the node rejects the pod
// only because of the volumes. The check is necessary because users write the node into claims. It reports whether
// it did.
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

// onlyVolumes reports whether the node rejects the pod only because of its volumes.
func (f *failure) onlyVolumes(n *nodeInfo) bool {
	return !slices.ContainsFunc(f.active, func(a *filter) bool {
		return a.name != volumeBinding && a.refuse(f.cycle, n) != nil
	})
}

// reconsider ends the nomination of a pod whose provisioner has given up the node.
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

// announce writes the nominated node into the pod's status. Errors are not retried.
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
		panic(err) // text always encodes
	}
	p.wrote = true
	if err := s.client.Status().
		Patch(ctx, reference(pod), ctrlclient.RawPatch(types.StrategicMergePatchType, patch)); err != nil &&
		!apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.log.Warn("could not write pod status", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
}

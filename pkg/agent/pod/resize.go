package pod

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// resizeFailed is the reason of a Failure when the runtime could not update a running container.
const resizeFailed = "ResizeError"

// resize gives a running container its new resources, if the node has room for the pod as it is now.
func (w *worker) resize(ctx context.Context, p *corev1.Pod, b *op) *Failure {
	c, _, _ := containerOf(p, b.Target)
	if c == nil {
		return nil
	}
	if node := w.m.c.Node(); node != nil {
		if v := Admit(p, node, nil); v != nil && strings.HasPrefix(v.Reason, "OutOf") {
			return &Failure{Reason: corev1.PodReasonInfeasible, Message: "Node didn't have enough capacity: " + v.Message, Until: time.Now().Add(backOffMax)}
		}
		if v := Admit(p, node, w.others()); v != nil && strings.HasPrefix(v.Reason, "OutOf") {
			return &Failure{Reason: corev1.PodReasonDeferred, Message: v.Message, Until: time.Now().Add(backOffFirst)}
		}
	}
	if err := w.m.c.Runtime.Update(ctx, b.ID, resources(p, c, w.m.c.MemoryCapacity)); err != nil {
		if ctx.Err() == nil {
			w.m.event(p, c.Name, corev1.EventTypeWarning, resizeFailed, err.Error())
		}
		return w.fail(c.Name, resizeFailed, err, time.Second)
	}
	w.mu.Lock()
	w.actions.applied[b.ID] = *c.Resources.DeepCopy()
	w.mu.Unlock()
	w.m.event(p, c.Name, corev1.EventTypeNormal, "ResizeCompleted", "Container resized")
	return nil
}

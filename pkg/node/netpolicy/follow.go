package netpolicy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// mark schedules the policies to be resolved again. The caller must hold r.mu.
func (r *Resolver) mark() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Resolver) setPolicy(p *networkingv1.NetworkPolicy, there bool) {
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	r.mu.Lock()
	defer r.mu.Unlock()
	if there {
		r.cluster.policies[name] = p
	} else {
		delete(r.cluster.policies, name)
	}
	if there && !r.seen {
		r.seen = true
		close(r.first)
	}
	r.mark()
}

func (r *Resolver) setNamespace(n *corev1.Namespace, there bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.cluster.namespaces[n.Name]
	switch {
	case !there:
		delete(r.cluster.namespaces, n.Name)
	case known && maps.Equal(was, n.Labels):
		return
	default:
		r.cluster.namespaces[n.Name] = n.Labels
	}
	r.mark()
}

func (r *Resolver) setPod(p *corev1.Pod, there bool) {
	var is *pod
	if there {
		is = podOf(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.cluster.pods[p.Namespace][p.Name]
	if was == nil && is == nil || was != nil && is != nil && was.equal(is) {
		return
	}
	if was != nil {
		delete(r.cluster.pods[p.Namespace], p.Name)
		if len(r.cluster.pods[p.Namespace]) == 0 {
			delete(r.cluster.pods, p.Namespace)
		}
	}
	if is != nil {
		if r.cluster.pods[p.Namespace] == nil {
			r.cluster.pods[p.Namespace] = map[string]*pod{}
		}
		r.cluster.pods[p.Namespace][p.Name] = is
	}
	r.mark()
}

// podOf returns a pod's input to the rules, or nil for a pod without a node, a terminated pod, or one in its node's
// network.
func podOf(p *corev1.Pod) *pod {
	if p.Spec.NodeName == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded ||
		p.Status.Phase == corev1.PodFailed {
		return nil
	}
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	out := &pod{
		NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
		uid:            identity(p, mirror),
		node:           p.Spec.NodeName,
		labels:         p.Labels,
	}
	if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && a.Is4() {
		out.address = a
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, port := range c.Ports {
				if port.Name != "" {
					out.ports = append(out.ports, namedPort{port.Name, protocolOf(port.Protocol), uint16(port.ContainerPort)})
				}
			}
		}
	}
	return out
}

const staticPrefix = "static:"

// identity returns the ID that node and server use for a pod: its UID or, for a static pod, whose UID in the API
// differs, its name. The mirror pod's annotation is not used, because anyone who may create pods could write another
// pod's UID into it.
func identity(p *corev1.Pod, static bool) types.UID {
	if static {
		return types.UID(staticPrefix + p.Namespace + "/" + p.Name)
	}
	return p.UID
}

func (p *pod) equal(o *pod) bool {
	return p.uid == o.uid && p.node == o.node && p.address == o.address && maps.Equal(p.labels, o.labels) &&
		slices.Equal(p.ports, o.ports)
}

// handler calls set for each event, with true for added and updated objects and false for deleted ones.
func handler[T ctrl.Object](r *Resolver, set func(T, bool)) toolscache.ResourceEventHandler {
	call := func(o any, there bool) {
		if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		if object, ok := o.(T); ok {
			_ = r.guard.Do("event", func() { set(object, there) }, "object", object.GetNamespace()+"/"+object.GetName())
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { call(o, true) },
		UpdateFunc: func(_, o any) { call(o, true) },
		DeleteFunc: func(o any) { call(o, false) },
	}
}

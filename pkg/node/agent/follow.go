package agent

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
)

// follow dispatches events of nodes and pods, and sets the agent ready.
func (a *Agent) follow(ctx context.Context) error {
	c := a.c.Client.Cache()
	end, err := client.Follow(ctx, c, &corev1.Node{}, handler(&a.guard, a.nodeSeen, a.nodeGone))
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer end()
	if _, err := c.GetInformer(ctx, &corev1.Service{}); err != nil { // for environment variables
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("watch services: %w", err)
	}
	a.servicesKnown.Store(true)
	for _, ready := range a.c.Before {
		select {
		case <-ready:
		case <-ctx.Done():
			return nil
		}
	}
	// Pods wait for the node's registration: admission needs its allocatable resources.
	for !a.admits() {
		select {
		case <-ctx.Done():
			return nil
		case <-a.nodeWake:
		}
	}
	close(a.known)
	mine := func(p *corev1.Pod) bool { return p.Spec.NodeName == a.c.NodeName }
	end, err = client.Follow(ctx, c, &corev1.Pod{}, handler(&a.guard, func(p *corev1.Pod) {
		switch {
		case !mine(p):
		case static.IsMirror(p):
			a.mirrorSeen(p)
		default:
			a.pods.Update(p)
		}
	}, func(p *corev1.Pod) {
		switch {
		case !mine(p):
		case static.IsMirror(p):
			a.mirrorGone(p)
		default:
			a.pods.Delete(p)
		}
	}))
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer end()
	if err := a.pods.Sync(ctx); err != nil {
		return err
	}
	close(a.synced)
	if a.static != nil {
		a.static.Synced()
	}
	if a.awaitReady(ctx) {
		a.SetReady()
	}
	<-ctx.Done()
	return nil
}

// awaitReady waits until the network is up and the Node is Ready. It returns false if ctx is done first.
func (a *Agent) awaitReady(ctx context.Context) bool {
	for {
		a.mu.Lock()
		up := a.network
		a.mu.Unlock()
		if n := a.registered(); up && n != nil && nodestate.Ready(n) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-a.nodeWake:
		}
	}
}

func handler[T ctrl.Object](guard *run.Guard, onSeen, onGone func(T)) toolscache.ResourceEventHandler {
	call := func(f func(T), object T) {
		_ = guard.Do("event", func() { f(object) }, "object", ctrl.ObjectKeyFromObject(object))
	}
	seen, gone := func(object T) { call(onSeen, object) }, func(object T) { call(onGone, object) }
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if t, ok := o.(T); ok {
				seen(t)
			}
		},
		UpdateFunc: func(_, o any) {
			if t, ok := o.(T); ok {
				seen(t)
			}
		},
		DeleteFunc: func(o any) {
			if d, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			if t, ok := o.(T); ok {
				gone(t)
			}
		},
	}
}

// nodesWith returns the other nodes whose status lists an image, which is up to five minutes old.
func (a *Agent) nodesWith(image string) (names []string) {
	for _, n := range a.otherNodes() {
		if slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool {
			return slices.Contains(i.Names, image)
		}) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// otherNodes returns none before this node is registered.
func (a *Agent) otherNodes() []corev1.Node {
	select {
	case <-a.known:
	default:
		return nil
	}
	var list corev1.NodeList
	if err := a.c.Client.Cache().List(context.Background(), &list); err != nil {
		a.log.Warn("could not list the nodes", "error", err)
	}
	return slices.DeleteFunc(slices.Clone(list.Items), func(n corev1.Node) bool { return n.Name == a.c.NodeName })
}

// OtherNodes returns the names of the cluster's other nodes.
func (a *Agent) OtherNodes() (names []string) {
	for _, n := range a.otherNodes() {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// services returns the services of a namespace and default/kubernetes. Before the cache has listed services it returns
// none, so that static pods can start without an API server.
func (a *Agent) services(ctx context.Context, namespace string) ([]*corev1.Service, error) {
	if !a.servicesKnown.Load() {
		return nil, nil
	}
	var list corev1.ServiceList
	if err := a.c.Client.Cache().List(ctx, &list, ctrl.InNamespace(namespace)); err != nil {
		return nil, err
	}
	out := make([]*corev1.Service, 0, len(list.Items)+1)
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	if namespace != corev1.NamespaceDefault {
		var s corev1.Service
		err := a.c.Client.Cache().Get(ctx, ctrl.ObjectKey{Namespace: corev1.NamespaceDefault, Name: "kubernetes"}, &s)
		if ctrl.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil {
			out = append(out, &s)
		}
	}
	return out, nil
}

package ingress

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// watch is a kind and the function to call for each event, with the object before and after. One of them is nil for
// an added or deleted object.
type watch struct {
	object ctrl.Object
	see    func(was, is ctrl.Object)
}

// follow calls w.see for all existing objects and all changes until end is called.
func (i *Ingress) follow(ctx context.Context, w watch) (end func(), err error) {
	see := func(was, is any) {
		if gone, ok := was.(toolscache.DeletedFinalStateUnknown); ok {
			was = gone.Obj
		}
		before, _ := was.(ctrl.Object)
		after, _ := is.(ctrl.Object)
		_ = i.guard.Do("event", func() { w.see(before, after) })
	}
	return client.Follow(ctx, i.Client.Cache(), w.object, toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { see(nil, o) }, UpdateFunc: see, DeleteFunc: func(o any) { see(o, nil) },
	})
}

func (i *Ingress) changed() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *Ingress) seeClass(was, is ctrl.Object) {
	i.mu.Lock()
	if c, ok := is.(*networkingv1.IngressClass); ok && c.Spec.Controller == Controller {
		i.classes[c.Name] = true
	} else if o := either(was, is); o != nil {
		delete(i.classes, o.GetName())
	}
	i.mu.Unlock()
	i.changed()
}

// seeIngress schedules a sync if the Ingress has, or had, one of our classes.
func (i *Ingress) seeIngress(was, is ctrl.Object) {
	before, _ := was.(*networkingv1.Ingress)
	after, _ := is.(*networkingv1.Ingress)
	i.mu.Lock()
	ours := before != nil && i.isOurs(before) || after != nil && i.isOurs(after)
	i.recheck = i.recheck || ours
	i.mu.Unlock()
	if ours {
		i.changed()
	}
}

func either(was, is ctrl.Object) ctrl.Object {
	if is != nil {
		return is
	}
	return was
}

func (i *Ingress) seeService(was, is ctrl.Object) {
	o := either(was, is)
	balanced := func(o ctrl.Object) bool {
		s, ok := o.(*corev1.Service)
		return ok && len(s.Status.LoadBalancer.Ingress) > 0 // its load balancer may take our ports
	}
	i.depends(func(t *table) bool {
		i.recheck = i.recheck || balanced(was) || balanced(is)
		return i.recheck || t.services[ctrl.ObjectKeyFromObject(o)]
	})
}

func (i *Ingress) seeSlice(was, is ctrl.Object) {
	o := either(was, is)
	i.depends(func(t *table) bool {
		return t.services[types.NamespacedName{
			Namespace: o.GetNamespace(), Name: o.GetLabels()[discoveryv1.LabelServiceName],
		}]
	})
}

func (i *Ingress) seeSecret(was, is ctrl.Object) {
	o := either(was, is)
	i.depends(func(t *table) bool { return t.secrets[ctrl.ObjectKeyFromObject(o)] })
}

// depends schedules a sync if concerns returns true for the last table. It holds i.mu while it calls concerns.
func (i *Ingress) depends(concerns func(*table) bool) {
	i.mu.Lock()
	yes := concerns(i.uses)
	i.mu.Unlock()
	if yes {
		i.changed()
	}
}

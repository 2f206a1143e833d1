package proxy

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// mark schedules a new plan for a service. The caller must hold p.mu.
func (p *Proxy) mark(name types.NamespacedName) {
	p.dirty[name] = true
	p.notify()
}

// notify wakes Run to sync the kernel. The caller must hold p.mu.
func (p *Proxy) notify() {
	p.received++
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Proxy) serviceHandler() toolscache.ResourceEventHandler {
	set := func(s *corev1.Service, there bool) {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		p.mu.Lock()
		defer p.mu.Unlock()
		if there {
			p.services[name] = s
		} else {
			delete(p.services, name)
		}
		p.mark(name)
	}
	return handler(&p.guard, set)
}

func (p *Proxy) sliceHandler() toolscache.ResourceEventHandler {
	set := func(s *discoveryv1.EndpointSlice, there bool) {
		service := s.Labels[discoveryv1.LabelServiceName]
		p.mu.Lock()
		defer p.mu.Unlock()
		name := types.NamespacedName{Namespace: s.Namespace, Name: service}
		if name == apiService {
			defer p.recheckGuarded()
		}
		if there && service != "" && !ignored(s) {
			if p.slices[name] == nil {
				p.slices[name] = map[string]*discoveryv1.EndpointSlice{}
			}
			p.slices[name][s.Name] = s
			p.mark(name)
			return
		}
		if _, ok := p.slices[name][s.Name]; ok {
			delete(p.slices[name], s.Name)
			if len(p.slices[name]) == 0 {
				delete(p.slices, name)
			}
			p.mark(name)
		}
	}
	return handlerMoving(&p.guard, set, func(s *discoveryv1.EndpointSlice) string {
		return s.Labels[discoveryv1.LabelServiceName]
	})
}

func handler[T ctrl.Object](guard *run.Guard, set func(object T, there bool)) toolscache.ResourceEventHandler {
	return handlerMoving(guard, set, func(T) string { return "" })
}

// handlerMoving returns a handler that calls unguarded for each event, within guard. If an update changes an
// object's group, it removes the old object first.
func handlerMoving[T ctrl.Object](guard *run.Guard, unguarded func(object T, there bool),
	group func(T) string) toolscache.ResourceEventHandler {
	set := func(object T, there bool) {
		_ = guard.Do("event", func() { unguarded(object, there) }, "object", ctrl.ObjectKeyFromObject(object))
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if object, ok := o.(T); ok {
				set(object, true)
			}
		},
		UpdateFunc: func(before, o any) {
			if old, ok := before.(T); ok {
				if object, ok := o.(T); ok && group(old) != group(object) {
					set(old, false)
				}
			}
			if object, ok := o.(T); ok {
				set(object, true)
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if object, ok := o.(T); ok {
				set(object, false)
			}
		},
	}
}

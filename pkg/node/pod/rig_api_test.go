package pod

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// api stores pods like the API server, and sends each change to one Manager, in order.
type api struct {
	mu      sync.Mutex
	version int
	pods    map[types.UID]*corev1.Pod
	manager *Manager
	// refuse, set by refusing, may fail a Manager's request.
	refuse func(verb string) error

	delivery sync.Mutex
}

func (a *api) get(uid types.UID) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[uid]; p != nil {
		return p.DeepCopy()
	}
	return nil
}

// subscribe sends all pods to a Manager, and then each change.
func (a *api) subscribe(m *Manager) {
	a.delivery.Lock()
	defer a.delivery.Unlock()
	a.mu.Lock()
	a.manager = m
	all := make([]*corev1.Pod, 0, len(a.pods))
	for _, p := range a.pods {
		all = append(all, p)
	}
	a.mu.Unlock()
	if m != nil {
		for _, p := range all {
			m.Update(p)
		}
	}
}

func (a *api) put(p *corev1.Pod) {
	a.delivery.Lock()
	defer a.delivery.Unlock()
	a.mu.Lock()
	a.version++
	p = p.DeepCopy()
	p.ResourceVersion = strconv.Itoa(a.version)
	a.pods[p.UID] = p
	m := a.manager
	a.mu.Unlock()
	if m != nil {
		m.Update(p)
	}
}

func (a *api) remove(uid types.UID) {
	a.delivery.Lock()
	defer a.delivery.Unlock()
	a.mu.Lock()
	p := a.pods[uid]
	delete(a.pods, uid)
	a.version++
	p = p.DeepCopy()
	p.ResourceVersion = strconv.Itoa(a.version)
	m := a.manager
	a.mu.Unlock()
	if m != nil {
		m.Delete(p)
	}
}

func (a *api) check(ctx context.Context, verb string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	a.mu.Lock()
	refuse := a.refuse
	a.mu.Unlock()
	if refuse != nil {
		return refuse(verb)
	}
	return nil
}

// refusing sets the function that may fail the requests of Managers; nil fails none.
func (a *api) refusing(f func(verb string) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = f
}

func (a *api) find(p *corev1.Pod) (*corev1.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, stored := range a.pods {
		if stored.Namespace == p.Namespace && stored.Name == p.Name {
			return stored.DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), p.Name)
}

// connection is a Manager's client. Methods that a Manager does not call panic.
type connection struct {
	client.Interface
	api *api
}

func (c *connection) Status() ctrl.SubResourceWriter { return statusWriter{api: c.api} }

func (c *connection) Delete(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
	if err := c.api.check(ctx, "delete"); err != nil {
		return err
	}
	o := (&ctrl.DeleteOptions{}).ApplyOptions(opts)
	stored, err := c.api.find(obj.(*corev1.Pod))
	switch {
	case err != nil:
		return err
	case *o.GracePeriodSeconds != 0:
		return errors.New("a node deletes pods whose grace period is over")
	case *o.Preconditions.UID != stored.UID:
		return apierrors.NewConflict(corev1.Resource("pods"), stored.Name, errors.New("another UID"))
	}
	c.api.remove(stored.UID)
	return nil
}

type statusWriter struct {
	ctrl.SubResourceWriter
	api *api
}

func (s statusWriter) Update(ctx context.Context, obj ctrl.Object, _ ...ctrl.SubResourceUpdateOption) error {
	if err := s.api.check(ctx, "update status"); err != nil {
		return err
	}
	p := obj.(*corev1.Pod)
	stored, err := s.api.find(p)
	if err != nil {
		return err
	}
	if stored.ResourceVersion != p.ResourceVersion || stored.UID != p.UID {
		return apierrors.NewConflict(corev1.Resource("pods"), p.Name, errors.New("it has changed"))
	}
	return s.store(p, stored, p.Status)
}

func (s statusWriter) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch,
	_ ...ctrl.SubResourcePatchOption) error {
	if err := s.api.check(ctx, "patch status"); err != nil {
		return err
	}
	p := obj.(*corev1.Pod)
	stored, err := s.api.find(p)
	if err != nil {
		return err
	}
	data, err := patch.Data(p)
	if err != nil {
		return err
	}
	before, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	after, err := strategicpatch.StrategicMergePatch(before, data, corev1.Pod{})
	if err != nil {
		return err
	}
	var changed corev1.Pod
	if err := json.Unmarshal(after, &changed); err != nil {
		return err
	}
	if changed.UID != stored.UID {
		return apierrors.NewConflict(corev1.Resource("pods"), p.Name, errors.New("another UID"))
	}
	return s.store(p, stored, changed.Status)
}

func (s statusWriter) store(answer, stored *corev1.Pod, status corev1.PodStatus) error {
	stored.Status = *status.DeepCopy()
	s.api.put(stored)
	if now := s.api.get(stored.UID); now != nil {
		*answer = *now
	}
	return nil
}

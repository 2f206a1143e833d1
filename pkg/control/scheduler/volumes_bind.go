package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// bindWait limits how long a binding waits for claims. Then the pod is retried when its claims are bound.
const bindWait = time.Second

// errClaimsWait means that binding the claims of a pod takes longer than bindWait.
var errClaimsWait = errors.New("its volumes are not there yet")

// bindVolumes writes the choice for the pod's claims, and waits until they are bound.
func (s *Scheduler) bindVolumes(ctx context.Context, c client.Interface, pod *corev1.Pod, node string) error {
	s.mu.Lock()
	chosen := s.state.volumes.chosen[pod.UID]
	s.mu.Unlock()
	if chosen == nil {
		return nil
	}
	for key, name := range chosen.static {
		if err := bindStatic(ctx, c, key, name); err != nil {
			return err
		}
	}
	for _, key := range chosen.provision {
		if err := selectNode(ctx, c, key, node); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bindWait)
	defer cancel()
	for {
		changed := s.storageChange()
		waiting := ""
		for _, key := range chosen.wait {
			done, err := isBound(ctx, c, key, node)
			if err != nil {
				return err
			}
			if !done {
				waiting = key.Name
			}
		}
		if waiting == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: timed out waiting for persistentvolumeclaim %q to be bound", errClaimsWait, waiting)
		}
	}
}

// bindStatic writes the claim into a volume's claimRef. The volume binder then binds them.
func bindStatic(ctx context.Context, c client.Interface, key types.NamespacedName, volume string) error {
	var claim corev1.PersistentVolumeClaim
	var pv corev1.PersistentVolume
	if err := c.Get(ctx, key, &claim); err != nil {
		return err
	}
	if err := c.Get(ctx, ctrlclient.ObjectKey{Name: volume}, &pv); err != nil {
		return err
	}
	if pv.Spec.ClaimRef != nil && !helpers.IsVolumeBoundToClaim(&pv, &claim) {
		return fmt.Errorf("persistentvolume %q was bound to another claim", volume)
	}
	next, changed, err := helpers.GetBindVolumeToClaim(&pv, &claim)
	if err != nil || !changed {
		return err
	}
	return c.Update(ctx, next)
}

// selectNode requests the provisioning of a claim's volume for a node.
func selectNode(ctx context.Context, c client.Interface, key types.NamespacedName, node string) error {
	var claim corev1.PersistentVolumeClaim
	if err := c.Get(ctx, key, &claim); err != nil {
		return err
	}
	if claim.Spec.VolumeName != "" || claim.Annotations[helpers.AnnSelectedNode] == node {
		return nil
	}
	next := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, helpers.AnnSelectedNode, node)
	return c.Update(ctx, next)
}

// isBound reports whether a claim is bound. It returns an error if the claim will not be bound on the node.
func isBound(ctx context.Context, c client.Interface, key types.NamespacedName, node string) (bool, error) {
	var claim corev1.PersistentVolumeClaim
	if err := c.Cache().Get(ctx, key, &claim); err != nil {
		return false, err
	}
	if claim.DeletionTimestamp != nil {
		return false, fmt.Errorf("persistentvolumeclaim %q is being deleted", claim.Name)
	}
	if _, done := claim.Annotations[helpers.AnnBindCompleted]; !done {
		if selected, ok := claim.Annotations[helpers.AnnSelectedNode]; ok && selected != node {
			return false, fmt.Errorf("selectedNode annotation value %q not set to scheduled node %q", selected, node)
		}
		return false, nil
	}
	var pv corev1.PersistentVolume
	var n corev1.Node
	if err := c.Cache().Get(ctx, ctrlclient.ObjectKey{Name: claim.Spec.VolumeName}, &pv); err != nil {
		return false, err
	}
	if err := c.Cache().Get(ctx, ctrlclient.ObjectKey{Name: node}, &n); err != nil {
		return false, err
	}
	if err := helpers.CheckNodeAffinity(&pv, n.Labels); err != nil {
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node, err)
	}
	if claim.Status.Phase == corev1.ClaimLost {
		return false, errors.New("the claim lost its volume")
	}
	return claim.Status.Phase == corev1.ClaimBound, nil
}

// storageChange returns a channel that is closed at the next change of a claim, volume or class.
func (s *Scheduler) storageChange() <-chan struct{} {
	s.storageMu.Lock()
	defer s.storageMu.Unlock()
	if s.storageChanged == nil {
		s.storageChanged = make(chan struct{})
	}
	return s.storageChanged
}

// storageHandler wakes bindings that wait for claims, and retries the pods that a change may make schedulable.
type storageHandler struct{ s *Scheduler }

func (h storageHandler) OnAdd(o any, _ bool) { h.s.handle(o, func() { h.changed(o) }) }
func (h storageHandler) OnUpdate(_, o any)   { h.s.handle(o, func() { h.changed(o) }) }
func (h storageHandler) OnDelete(o any) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	h.s.handle(o, func() { h.changed(o) })
}

func (h storageHandler) changed(o any) {
	s := h.s
	s.storageMu.Lock()
	if s.storageChanged != nil {
		close(s.storageChanged)
		s.storageChanged = nil
	}
	s.storageMu.Unlock()
	claim, _ := o.(*corev1.PersistentVolumeClaim)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := now()
	for p := range s.queue.unschedulable {
		if len(p.info.claims) > 0 && (claim == nil || p.info.pod.Namespace == claim.Namespace) {
			s.queue.retry(p, at)
		}
	}
}

func storageKinds() []ctrlclient.Object {
	return []ctrlclient.Object{
		&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &storagev1.StorageClass{}, &storagev1.CSINode{},
		&storagev1.CSIDriver{},
		&storagev1.CSIStorageCapacity{}, &storagev1.VolumeAttachment{},
	}
}

package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/node/pod"
)

// runNode registers the node and then renews its status and lease until ctx is done.
func (a *Agent) runNode(ctx context.Context) error {
	again := backoff.Backoff{First: 50 * time.Millisecond, Most: 7 * time.Second}
	for {
		err := a.register(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.As(err, new(notOwnedError)) {
			return err
		}
		a.log.Warn("could not register node, retrying", "node", a.c.NodeName, "error", err)
		if !again.Wait(ctx) {
			return nil
		}
	}
	a.wakeNode()
	beat := time.NewTicker(leasePeriod)
	defer beat.Stop()
	posted, collected := time.Now(), time.Now()
	var lease *coordinationv1.Lease
	renew := func() {
		l, err := a.renew(ctx, lease)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("could not renew node lease, retrying", "error", err)
		}
		lease = l
	}
	renew()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.statusWake:
		case <-beat.C:
			renew()
		}
		if a.nodeDeleted.Swap(false) {
			if err := a.register(ctx); err != nil {
				if errors.As(err, new(notOwnedError)) {
					return err
				}
				a.nodeDeleted.Store(true)
				if ctx.Err() == nil {
					a.log.Warn("could not register deleted node again, retrying", "error", err)
				}
				continue
			}
			posted = time.Now()
			a.wakeNode()
		}
		force := time.Since(posted) >= statusPeriod
		if time.Since(collected) >= imagePeriod {
			a.collectImages(ctx)
			collected = time.Now()
		}
		wrote, err := a.postStatus(ctx, force)
		if errors.As(err, new(notOwnedError)) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("could not write node status, retrying", "error", err)
		}
		if wrote {
			posted = time.Now()
		}
	}
}

// notOwnedError means that another machine registered the Node.
type notOwnedError struct{ error }

// register creates or updates the node and its status: if the network is up, the first write already reports Ready.
func (a *Agent) register(ctx context.Context) error {
	labels := a.labels()
	annotations := map[string]string{storage.DirectoryAnnotation: pod.LocalVolumes(a.c.DataDir)}
	maps.Copy(annotations, a.c.Annotations)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.c.NodeName, Labels: labels, Annotations: annotations}}
	n.Spec.Taints = a.c.Taints
	n.Status = a.status(corev1.NodeStatus{}, true)
	err := a.c.Client.Create(ctx, n)
	if apierrors.IsAlreadyExists(err) {
		var old corev1.Node
		if err = a.c.Client.Get(ctx, types.NamespacedName{Name: a.c.NodeName}, &old); err != nil {
			return err
		}
		if a.c.VerifyNode != nil {
			if err = a.c.VerifyNode(&old); err != nil {
				return notOwnedError{err}
			}
		}
		n = old.DeepCopy()
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		maps.Copy(n.Labels, labels)
		maps.Copy(n.Annotations, annotations)
		if !maps.Equal(old.Labels, n.Labels) || !maps.Equal(old.Annotations, n.Annotations) {
			if err = a.c.Client.Patch(ctx, n, ctrl.MergeFrom(&old)); err != nil {
				return err
			}
		}
	} else if err != nil {
		return err
	}
	a.nodeChanged(ctx, n)
	// The cache may have delivered a newer version, for example with a podCIDR. No further event follows for it.
	var seen corev1.Node
	if a.c.Client.Cache().Get(ctx, types.NamespacedName{Name: a.c.NodeName}, &seen) == nil && seen.UID == n.UID {
		a.nodeChanged(ctx, &seen)
	}
	_, err = a.postStatus(ctx, true)
	return err
}

func (a *Agent) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: a.c.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: a.machine.arch,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": a.machine.arch,
	}
	maps.Copy(labels, a.c.Labels)
	return labels
}

// wakeStatus makes runNode compute the node's status.
func (a *Agent) wakeStatus() {
	select {
	case a.statusWake <- struct{}{}:
	default:
	}
}

func (a *Agent) wakeNode() {
	select {
	case a.nodeWake <- struct{}{}:
	default:
	}
}

// nodeChanged handles a new version of this agent's node, and passes a new pod range to the network.
func (a *Agent) nodeChanged(ctx context.Context, n *corev1.Node) {
	a.mu.Lock()
	if a.node != nil && len(a.node.ResourceVersion) >= len(n.ResourceVersion) &&
		(len(a.node.ResourceVersion) > len(n.ResourceVersion) || a.node.ResourceVersion > n.ResourceVersion) {
		a.mu.Unlock()
		return
	}
	other := a.node == nil || a.node.UID != n.UID
	attached := a.node != nil && !apiequality.Semantic.DeepEqual(a.node.Status.VolumesAttached, n.Status.VolumesAttached)
	a.node = n
	a.mu.Unlock()
	if attached {
		a.pods.RetryVolumes()
	}
	a.applyRange(ctx, n)
	if other && a.static != nil {
		a.static.NodeChanged()
	}
}

// applyRange passes the node's pod range to the network if it is new and valid.
func (a *Agent) applyRange(ctx context.Context, n *corev1.Node) {
	if n.Spec.PodCIDR == "" || a.c.OnPodCIDR == nil {
		return
	}
	a.applying.Lock() // the registration and its event come at the same time
	defer a.applying.Unlock()
	a.mu.Lock()
	before := a.cidr
	a.mu.Unlock()
	cidr, err := netip.ParsePrefix(n.Spec.PodCIDR)
	if err != nil {
		a.log.Error("invalid podCIDR of this node", "podCIDR", n.Spec.PodCIDR)
		return
	}
	if why := a.setRange(n); why != "" || cidr == before {
		return
	}
	if err := a.c.OnPodCIDR(ctx, cidr); err != nil {
		a.log.Error("could not set podCIDR of this node", "podCIDR", cidr, "error", err)
		return
	}
	a.mu.Lock()
	a.cidr, a.network = cidr, true
	a.mu.Unlock()
	a.keepRange(cidr)
	a.pods.Retry()
}

// nodeSeen handles every added or changed node.
func (a *Agent) nodeSeen(n *corev1.Node) {
	if n.Name == a.c.NodeName {
		a.mu.Lock()
		known := a.node != nil
		a.mu.Unlock()
		if known {
			a.nodeChanged(context.Background(), n)
			a.wakeNode()
			a.wakeStatus()
		}
		return
	}
	a.setRange(n)
}

func (a *Agent) nodeGone(n *corev1.Node) {
	if n.Name == a.c.NodeName {
		a.nodeDeleted.Store(true)
		a.wakeStatus()
		return
	}
	a.mu.Lock()
	own := a.syncRoutes(n.Name, nil)
	a.mu.Unlock()
	a.retryRange(own)
}

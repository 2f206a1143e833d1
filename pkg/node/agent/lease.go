package agent

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// renew writes the node's lease and returns it for the next call. If l is nil, the lease is read or created first.
func (a *Agent) renew(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	now := metav1.NowMicro()
	seconds := int32(leaseSeconds)
	if l == nil {
		l = &coordinationv1.Lease{}
		err := a.c.Client.Get(ctx, types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: a.c.NodeName}, l)
		if apierrors.IsNotFound(err) {
			l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: a.c.NodeName}}
			if n := a.registered(); n != nil {
				l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
			}
			l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &a.c.NodeName, LeaseDurationSeconds: &seconds, RenewTime: &now}
			if err := a.c.Client.Create(ctx, l); err != nil {
				return nil, err
			}
			return l, nil
		}
		if err != nil {
			return nil, err
		}
	}
	l = l.DeepCopy()
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &a.c.NodeName, &seconds, &now
	if err := a.c.Client.Update(ctx, l); err != nil {
		return nil, err
	}
	return l, nil
}

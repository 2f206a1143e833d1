package election

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client/events"
)

// lock is client-go's resource lock for one term. Reads may be stale, so writes compare the resourceVersion.
type lock struct {
	e        *Election
	identity string
	events   *events.Recorder
	standby  func() // called after a failed attempt

	lease  *coordinationv1.Lease // as last read or written; the elector calls one method at a time
	holder atomic.Bool           // as far as known, this process holds the Lease
}

var _ resourcelock.Interface = (*lock)(nil)

func (l *lock) Identity() string { return l.identity }
func (l *lock) Describe() string { return metav1.NamespaceSystem + "/" + l.e.Lease }

// RecordEvent records a change of leadership. A server that is Alone records none.
func (l *lock) RecordEvent(what string) {
	if l.e.Alone() || l.lease == nil {
		return
	}
	l.events.About(corev1.ObjectReference{
		APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Namespace: l.lease.Namespace,
		Name: l.lease.Name, UID: l.lease.UID, ResourceVersion: l.lease.ResourceVersion,
	},
		corev1.EventTypeNormal, "LeaderElection", "%s %s", l.identity, what)
}

func (l *lock) read(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := l.e.Client.Get(ctx, ctrl.ObjectKey{Namespace: metav1.NamespaceSystem, Name: l.e.Lease}, lease)
	if err != nil {
		return nil, err
	}
	return lease.DeepCopy(), nil
}

// Get returns the record for the elector. A server that is Alone treats a Lease of a Coracle server as free. Other
// servers limit its duration to LeaseDuration.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	lease, err := l.read(ctx)
	l.e.Reached(err == nil || apierrors.IsNotFound(err))
	if err != nil {
		if !apierrors.IsNotFound(err) {
			l.failed("could not read leader election lease", err)
			l.standby()
		}
		return nil, nil, err
	}
	l.lease = lease
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, nil, err
	}
	alone, other := l.e.Alone(), record.HolderIdentity != l.identity
	if other {
		l.holder.Store(false)
		l.e.until.Store(0)
	}
	switch {
	case other && alone && isOurs(record.HolderIdentity):
		record.HolderIdentity = "" // an earlier Coracle process that no longer runs
	case other && record.HolderIdentity != "":
		if isOurs(record.HolderIdentity) {
			record.LeaseDurationSeconds = min(record.LeaseDurationSeconds, int(l.e.LeaseDuration/time.Second))
		}
		l.standby()
	}
	return record, raw, nil
}

// Create creates the Lease.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: l.e.Lease}, Spec: l.spec(record),
	}
	if err := l.e.Client.Create(ctx, lease); err != nil {
		l.failed("could not create leader election lease", err)
		return l.without(err, at)
	}
	l.wrote(lease, at)
	return nil
}

// Update renews or acquires the Lease. A server that is Alone and holds the Lease leaves it unchanged.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	if l.e.Alone() {
		if lease, err := l.read(ctx); err == nil && held(lease, l.identity) {
			l.wrote(lease, at)
			return nil
		}
	}
	if l.lease == nil {
		return errors.New("the lease has not been read yet")
	}
	lease := l.lease.DeepCopy()
	lease.Spec = l.spec(record)
	if err := l.e.Client.Update(ctx, lease); err != nil {
		l.failed("could not renew leader election lease", err)
		return l.without(err, at)
	}
	l.wrote(lease, at)
	return nil
}

// held reports whether by holds the Lease for aloneSeconds.
func held(l *coordinationv1.Lease, by string) bool {
	return l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == by && l.Spec.LeaseDurationSeconds != nil &&
		*l.Spec.LeaseDurationSeconds == aloneSeconds
}

func (l *lock) spec(record resourcelock.LeaderElectionRecord) coordinationv1.LeaseSpec {
	if l.e.Alone() {
		record.LeaseDurationSeconds = aloneSeconds
	}
	return resourcelock.LeaderElectionRecordToLeaseSpec(&record)
}

func (l *lock) wrote(lease *coordinationv1.Lease, at time.Time) {
	l.lease = lease
	l.holder.Store(true)
	l.e.Reached(true)
	l.e.renewed(at)
}

// without decides whether this process leads although it could not write the Lease. It does if it is Alone and no
// other process wrote the Lease: the store may be full, and only the leader's deletions free space.
func (l *lock) without(err error, at time.Time) error {
	if !l.e.Alone() || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		l.standby()
		return err
	}
	l.e.renewed(at)
	return nil
}

func (l *lock) failed(message string, err error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
		errors.Is(err, context.Canceled) {
		return // another process was faster, or the Lease will be read again
	}
	l.e.Log.Warn(message, "lease", l.e.Lease, "error", err)
}

// release releases the Lease if this process holds it and is not Alone. It only logs a failure, because the Lease
// expires anyway.
func (l *lock) release(ctx context.Context, within time.Duration) error {
	l.e.until.Store(0)
	if !l.holder.Load() || l.e.Alone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	if err := release(ctx, l.e.Client, l.e.Lease, func(holder string) bool { return holder == l.identity }); err != nil {
		l.e.Log.Warn("could not release leader election lease", "lease", l.e.Lease, "error", err)
	}
	return nil
}

// Yield releases a Lease that a Coracle server holds. Only a server that is Alone and does not run the Lease's
// components may call it.
func Yield(ctx context.Context, c ctrl.Client, name string) error {
	return release(ctx, c, name, isOurs)
}

// releaseTries bounds the attempts to release a Lease that other processes also write.
const releaseTries = 5

func release(ctx context.Context, c ctrl.Client, name string, mine func(holder string) bool) error {
	for try := 1; ; try++ {
		lease := &coordinationv1.Lease{}
		err := c.Get(ctx, ctrl.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, lease)
		if err != nil {
			return ctrl.IgnoreNotFound(err)
		}
		lease = lease.DeepCopy()
		if lease.Spec.HolderIdentity == nil || !mine(*lease.Spec.HolderIdentity) {
			return nil
		}
		now, second, nobody := metav1.NowMicro(), int32(1), ""
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime, lease.Spec.AcquireTime = &nobody,
			&second, &now, &now
		if err := c.Update(ctx, lease); !apierrors.IsConflict(err) || ctx.Err() != nil || try == releaseTries {
			return err
		}
	}
}

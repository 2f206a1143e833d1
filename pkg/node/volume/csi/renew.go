package csi

import (
	"context"
	"fmt"
	"math"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/client"
)

const (
	// renewTimeout limits one renewal: renewals of the other drivers wait for it.
	renewTimeout = 10 * time.Second
	// attachPatience is how long a pod waits for a volume that cannot be attached, as in the kubelet.
	attachPatience = 2*time.Minute + 3*time.Second
	// mostPeriod is the longest renewal period in seconds: validation has no limit, and a Duration would overflow.
	mostPeriod = math.MaxInt64 / int64(time.Second)
)

// renewal says how often and when next to ask a driver how many volumes it can attach to this node (KEP-4876).
type renewal struct {
	every time.Duration
	next  time.Time
}

// Run renews the drivers' limits as often as their CSIDriver objects say, until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-m.first:
	}
	end, err := client.Follow(ctx, m.c.Client.Cache(), &storagev1.CSIDriver{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: m.described, UpdateFunc: func(_, now any) { m.described(now) }, DeleteFunc: m.undescribed,
	})
	if ctx.Err() != nil {
		return nil // ctx caused the error
	}
	if err != nil {
		return err
	}
	defer end()
	m.renewAll(ctx)
	return nil
}

func (m *Manager) renewAll(ctx context.Context) {
	for {
		name, at := m.nextRenewal()
		var due <-chan time.Time
		if name != "" {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-due:
			m.renewed(name, m.renew(ctx, name))
		}
	}
}

func (m *Manager) described(o any) {
	d, ok := o.(*storagev1.CSIDriver)
	if !ok {
		return
	}
	every := periodOf(d)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case every == 0:
		delete(m.renewals, d.Name)
	case m.renewals[d.Name].every != every:
		m.renewals[d.Name] = renewal{every, time.Now().Add(every)}
	}
	m.wake()
}

func (m *Manager) undescribed(o any) {
	if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if d, ok := o.(*storagev1.CSIDriver); ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.renewals, d.Name)
		m.wake()
	}
}

func periodOf(d *storagev1.CSIDriver) time.Duration {
	if d == nil || d.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(min(*d.Spec.NodeAllocatableUpdatePeriodSeconds, mostPeriod)) * time.Second
}

// wake makes renewAll compute the next renewal again. Called with the lock held.
func (m *Manager) wake() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// nextRenewal returns the registered driver whose renewal is due first, "" if there is none.
func (m *Manager) nextRenewal() (name string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, r := range m.renewals {
		if _, here := m.drivers[n]; here && (name == "" || r.next.Before(at)) {
			name, at = n, r.next
		}
	}
	return name, at
}

func (m *Manager) renewed(name string, err error) {
	if err != nil {
		m.c.Logger.Warn("could not ask CSI driver how many volumes it can attach to this node", "driver", name, "error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.renewals[name]; ok {
		r.next = time.Now().Add(r.every)
		m.renewals[name] = r
	}
}

// renew asks a driver about this node and updates its entry in the CSINode.
func (m *Manager) renew(ctx context.Context, name string) error {
	m.mu.Lock()
	d, has := m.drivers[name]
	m.mu.Unlock()
	if !has {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	info, err := m.ask(ctx, d)
	if err != nil {
		return err
	}
	entry, err := entryOf(name, info)
	if err != nil {
		return err
	}
	m.node.Lock()
	defer m.node.Unlock()
	return m.changeCSINode(ctx, name, &entry)
}

func (m *Manager) ask(ctx context.Context, d driver) (*spec.NodeGetInfoResponse, error) {
	conn, err := m.c.Dir.Dial(d.endpoint, maxMessage)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	info, err := spec.NewNodeClient(conn).NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("NodeGetInfo: %w", err)
	}
	return info, nil
}

// noRoom reports whether the pod should fail because the driver cannot attach another volume to this node: it has
// waited for attachPatience. It also renews the driver's limit in the CSINode, so that the scheduler places the
// replacement pod on another node. It is always false for drivers without a renewal period.
func (m *Manager) noRoom(ctx context.Context, p *corev1.Pod, object *storagev1.CSIDriver,
	failure *storagev1.VolumeError) bool {
	if periodOf(object) == 0 || failure.ErrorCode == nil || *failure.ErrorCode != int32(codes.ResourceExhausted) ||
		p.Status.StartTime == nil || time.Since(p.Status.StartTime.Time) < attachPatience {
		return false
	}
	m.renewed(object.Name, m.renew(ctx, object.Name))
	return true
}

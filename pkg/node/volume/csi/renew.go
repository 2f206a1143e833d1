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
	// renewTimeout limits a driver's answer about this node, for which the other drivers wait.
	renewTimeout = 10 * time.Second
	// attachPatience is how long a pod waits for a volume that its driver has no room for on this node, as in the kubelet.
	attachPatience = 2*time.Minute + 3*time.Second
	// mostPeriod is the longest period in seconds, of which validation knows no limit: more of them are less than none.
	mostPeriod = math.MaxInt64 / int64(time.Second)
)

// renewal is how often a driver is asked anew how many volumes it can attach to this node (KEP-4876), and when next.
type renewal struct {
	every time.Duration
	next  time.Time
}

// Run asks the drivers of this node again, as often as their CSIDriver objects say, until ctx ends. Without a driver it
// does nothing.
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
		return nil // the error is caused by the end of ctx
	}
	if err != nil {
		return err
	}
	defer end()
	m.renewAll(ctx)
	return nil
}

// renewAll asks drivers when it is time, until ctx ends.
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

// described is called with each CSIDriver that comes or changes.
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

// periodOf returns how often a driver wants to be asked, 0 for never.
func periodOf(d *storagev1.CSIDriver) time.Duration {
	if d == nil || d.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(min(*d.Spec.NodeAllocatableUpdatePeriodSeconds, mostPeriod)) * time.Second
}

// wake lets Run look again. Called with the lock held.
func (m *Manager) wake() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// nextRenewal returns the registered driver that is to be asked next, "" for none.
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

// renewed plans the next renewal, and says if one failed.
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

// renew writes what a driver says now about this node into the CSINode.
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

// ask asks a driver about this node.
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

// noRoom reports whether a pod has waited long enough for a volume that its driver has no room for on this node. Then
// the CSINode says what the driver says now, so that the scheduler places the pod that is made instead elsewhere. Only
// drivers that are asked again have this.
func (m *Manager) noRoom(ctx context.Context, p *corev1.Pod, object *storagev1.CSIDriver,
	failure *storagev1.VolumeError) bool {
	if periodOf(object) == 0 || failure.ErrorCode == nil || *failure.ErrorCode != int32(codes.ResourceExhausted) ||
		p.Status.StartTime == nil || time.Since(p.Status.StartTime.Time) < attachPatience {
		return false
	}
	m.renewed(object.Name, m.renew(ctx, object.Name))
	return true
}

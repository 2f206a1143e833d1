// Package dra has drivers prepare the devices of resource claims (KEP-4381) for pods on this node, gives containers
// the prepared devices through CDI, and reports the health of devices to pods (KEP-4680).
//
// Its invariants: a claim is on disk before a driver is called for it, and remains until every driver has unprepared
// it. Drivers unprepare a claim only after no pod that used it has anything left on this node. So restarts do not
// lose prepared claims, and no device has two users. Data from drivers is bounded, and calls to them have deadlines.
package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

// Config of a Manager.
type Config struct {
	Client   client.Interface
	NodeName string
	Dir      plugins.Dir
	// File stores the prepared claims.
	File string
	// CDIDirs are the directories of CDI specifications; nil means cdi.Dirs.
	CDIDirs []string
	// Wipe is how long an unregistered driver keeps its ResourceSlices; 0 means 30 s, as in the kubelet.
	Wipe time.Duration
	// HealthChanged, if set, is called when the result of Health may have changed for these pods.
	HealthChanged func(pods []types.UID)
	Logger        *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Manager has drivers prepare claims. It is safe for concurrent use.
type Manager struct {
	c     Config
	guard run.Guard

	mu      sync.Mutex
	drivers map[string][]*driver // registered drivers by name, the newest last
	known   []string             // names of drivers that have registered and may have slices
	claims  map[types.UID]*claim
	busy    map[types.UID]chan struct{} // claims for which drivers are being called
	wipes   map[string]time.Time        // when to delete the slices of an unregistered driver
	changed chan struct{}               // capacity 1: wipes or drivers changed
}

// New returns a Manager with the recorded claims. Run deletes the slices of unregistered drivers.
func New(c Config) (*Manager, error) {
	c.Wipe = cmp.Or(c.Wipe, 30*time.Second)
	if c.CDIDirs == nil {
		c.CDIDirs = cdi.Dirs
	}
	m := &Manager{
		c: c, guard: run.Guard{Log: c.Logger, Component: "dra"}, drivers: map[string][]*driver{},
		claims: map[types.UID]*claim{},
		busy:   map[types.UID]chan struct{}{}, wipes: map[string]time.Time{}, changed: make(chan struct{}, 1),
	}
	return m, m.load()
}

// Pods returns the pods of all recorded claims.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.UID
	for _, c := range m.claims {
		out = append(out, c.Pods...)
	}
	return out
}

// Holds reports whether a pod has claims that are or may be prepared.
func (m *Manager) Holds(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.claims {
		if slices.Contains(c.Pods, pod) {
			return true
		}
	}
	return false
}

// prepare has one claim of a pod prepared, unless it already is, and returns its UID, or "" if the pod needs none.
func (m *Manager) prepare(ctx context.Context, p *corev1.Pod, of *corev1.PodResourceClaim) (types.UID, error) {
	name, owned, err := resourceclaim.Name(p, of)
	if err != nil || name == nil {
		return "", err
	}
	var stored resourcev1.ResourceClaim
	if err := m.c.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: *name}, &stored); err != nil {
		return "", err
	}
	if owned {
		if err := resourceclaim.IsForPod(p, &stored, false); err != nil {
			return "", err
		}
	}
	if stored.Status.Allocation == nil {
		return "", errors.New("it is not allocated")
	}
	if !resourceclaim.IsReservedForPod(p, &stored, false) {
		return "", errors.New("it is not reserved for the pod")
	}
	done, err := m.take(ctx, stored.UID)
	if err != nil {
		return "", err
	}
	defer done()
	if ready, err := m.use(p.UID, &stored); ready || err != nil {
		return stored.UID, err
	}
	return stored.UID, m.ask(ctx, &stored)
}

// take waits until no driver is being called for a claim, and locks the claim until done is called.
func (m *Manager) take(ctx context.Context, uid types.UID) (done func(), err error) {
	for {
		m.mu.Lock()
		busy := m.busy[uid]
		if busy == nil {
			busy = make(chan struct{})
			m.busy[uid] = busy
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				delete(m.busy, uid)
				close(busy)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// use records that a pod uses a claim, and reports whether the claim is prepared.
func (m *Manager) use(pod types.UID, stored *resourcev1.ResourceClaim) (ready bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[stored.UID]
	if c == nil {
		c = &claim{Namespace: stored.Namespace, Name: stored.Name}
		for _, r := range stored.Status.Allocation.Devices.Results {
			if !slices.Contains(c.Drivers, r.Driver) {
				c.Drivers = append(c.Drivers, r.Driver)
			}
			if r.ShareID == nil && (r.AdminAccess == nil || !*r.AdminAccess) {
				c.Alone = append(c.Alone, r.Driver+"/"+r.Pool+"/"+r.Device)
			}
		}
		if other, device := m.conflict(c); other != nil {
			return false, fmt.Errorf("device %s is still in use with claim %s/%s", device, other.Namespace, other.Name)
		}
		c.Prepared = len(c.Drivers) == 0
		m.claims[stored.UID] = c
	}
	if slices.Contains(c.Pods, pod) {
		return c.Prepared, nil
	}
	c.Pods = append(c.Pods, pod)
	if err := m.save(); err != nil {
		if c.Pods = c.Pods[:len(c.Pods)-1]; len(c.Pods) == 0 {
			delete(m.claims, stored.UID)
		}
		return false, err
	}
	return c.Prepared, m.c.Failpoints.At("claim.recorded")
}

// conflict returns another claim that has one of the claim's devices. This happens if the other claim's pod was
// force-deleted and still runs on this node. Called with the lock held.
func (m *Manager) conflict(c *claim) (other *claim, device string) {
	for _, o := range m.claims {
		if i := slices.IndexFunc(o.Alone, func(d string) bool { return slices.Contains(c.Alone, d) }); i >= 0 {
			return o, o.Alone[i]
		}
	}
	return nil, ""
}

// ask calls the drivers of a claim, and records their answers.
func (m *Manager) ask(ctx context.Context, stored *resourcev1.ResourceClaim) error {
	m.mu.Lock()
	names := m.claims[stored.UID].Drivers
	m.mu.Unlock()
	var all []device
	for _, name := range names {
		d, err := m.driver(name)
		if err != nil {
			return err
		}
		devices, err := d.prepare(ctx, stored)
		if err != nil {
			return fmt.Errorf("NodePrepareResources of driver %s: %w", name, err)
		}
		if err := m.c.Failpoints.At("claim.prepared"); err != nil {
			return err
		}
		all = append(all, devices...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[stored.UID]
	c.Devices, c.Prepared = all, true
	if err := m.save(); err != nil {
		c.Devices, c.Prepared = nil, false
		return err
	}
	return m.c.Failpoints.At("claim.ready")
}

// Forget has drivers unprepare the claims that only this pod used, after its containers have ended.
func (m *Manager) Forget(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	var uids []types.UID
	for uid, c := range m.claims {
		if slices.Contains(c.Pods, pod) {
			uids = append(uids, uid)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, uid := range uids {
		errs = append(errs, m.leave(ctx, pod, uid))
	}
	return errors.Join(errs...)
}

// leave removes a pod from a claim, and has drivers unprepare the claim after the last pod.
func (m *Manager) leave(ctx context.Context, pod, uid types.UID) error {
	done, err := m.take(ctx, uid)
	if err != nil {
		return err
	}
	defer done()
	m.mu.Lock()
	c := m.claims[uid]
	if c == nil || !slices.Contains(c.Pods, pod) {
		m.mu.Unlock()
		return nil
	}
	if len(c.Pods) > 1 {
		defer m.mu.Unlock()
		c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(p types.UID) bool { return p == pod })
		return m.save()
	}
	names := c.Drivers
	m.mu.Unlock()
	for _, name := range names {
		d, err := m.driver(name)
		if err == nil {
			err = d.unprepare(ctx, uid, c)
		}
		if err != nil {
			return fmt.Errorf("unprepare resource claim %s/%s: driver %s: %w", c.Namespace, c.Name, name, err)
		}
		if err := m.c.Failpoints.At("claim.unprepared"); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, uid)
	if err := m.save(); err != nil {
		m.claims[uid] = c
		return err
	}
	return m.c.Failpoints.At("claim.released")
}

// Run deletes the ResourceSlices of unregistered drivers and watches the health of devices, until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	for _, name := range m.known {
		if len(m.drivers[name]) == 0 {
			m.wipes[name] = time.Now().Add(m.c.Wipe)
		}
	}
	m.mu.Unlock()
	for {
		m.listen(ctx, wg.Go)
		name, at := m.nextWipe()
		var due <-chan time.Time
		if name != "" {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
		case <-due:
			m.wipe(ctx, name)
		}
	}
}

func (m *Manager) nextWipe() (name string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, t := range m.wipes {
		if name == "" || t.Before(at) {
			name, at = n, t
		}
	}
	return name, at
}

// wipe deletes the slices of a driver. If that fails, it is retried after another Wipe.
func (m *Manager) wipe(ctx context.Context, name string) {
	err := m.deleteSlices(ctx, name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.drivers[name]) > 0 {
		return // the driver has registered again, and publishes them itself
	}
	if err != nil {
		if ctx.Err() == nil {
			m.c.Logger.Warn("could not delete the resource slices of a driver that is gone, retrying", "driver", name, "error",
				err)
		}
		m.wipes[name] = time.Now().Add(m.c.Wipe)
		return
	}
	m.c.Logger.Info("deleted the resource slices of a driver that is gone", "driver", name)
	delete(m.wipes, name)
	m.known = slices.DeleteFunc(m.known, func(n string) bool { return n == name })
	if err := m.save(); err != nil {
		m.c.Logger.Warn("could not record that a driver is gone", "driver", name, "error", err)
	}
}

func (m *Manager) deleteSlices(ctx context.Context, driver string) error {
	var list resourcev1.ResourceSliceList
	if err := m.c.Client.List(ctx, &list, ctrlclient.MatchingFields{
		resourcev1.ResourceSliceSelectorNodeName: m.c.NodeName,
	}); err != nil {
		return err
	}
	for i := range list.Items {
		s := &list.Items[i]
		if s.Spec.Driver != driver {
			continue
		}
		if err := ctrlclient.IgnoreNotFound(m.c.Client.Delete(ctx, s, ctrlclient.Preconditions{UID: &s.UID})); err != nil {
			return err
		}
	}
	return nil
}

package dra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthalpha "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// The health of devices (KEP-4680): drivers that have the service DRAResourceHealth stream it, and it becomes part of
// the status of the containers that have the devices. What a driver has not said, or not confirmed in time, is unknown.

const (
	maxHealths    = 16384            // devices of one driver, as upstream
	healthTimeout = 30 * time.Second // until a device is unknown, unless its driver says another
	maxTimeout    = 24 * time.Hour
	maxReason     = 1024 // bytes of what a driver says about a device's health
)

// deviceHealth is what a driver has last said about a device.
type deviceHealth struct {
	health  corev1.ResourceHealthStatus
	message string
	until   time.Time // when it is unknown again
}

// healthService returns the newest service for health among those that a driver says it has, "" if there is none.
func healthService(versions []string) string {
	for _, v := range []string{drahealth.DRAResourceHealthService, drahealthalpha.DRAResourceHealthService} {
		if slices.Contains(versions, v) {
			return v
		}
	}
	return ""
}

// listen begins to receive health from registered drivers that have not been asked yet. Each goes on until the driver
// is gone, or ctx ends.
func (m *Manager) listen(ctx context.Context, spawn func(func())) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range m.drivers {
		for _, d := range list {
			if d.stop != nil || healthService(d.info.Versions) == "" {
				continue
			}
			own, stop := context.WithCancel(ctx)
			d.stop = stop
			spawn(func() { _ = m.guard.Do("health of devices", func() { m.hear(own, d) }, "driver", d.info.Name) })
		}
	}
}

// hear receives the health of a driver's devices until ctx ends, over as many streams as it takes.
func (m *Manager) hear(ctx context.Context, d *driver) {
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 7, Cap: time.Minute}
	pause, heard := pauses.DelayFunc(), false
	next := func() time.Duration {
		if heard { // a driver may limit how long a stream is
			pause = pauses.DelayFunc()
		}
		return pause()
	}
	_ = wait.DelayFunc(next).Until(ctx, true, true, func(ctx context.Context) (done bool, err error) {
		heard, err = m.receive(ctx, d)
		if ctx.Err() == nil {
			m.said(d, nil) // nothing is known of them any more
		}
		if status.Code(err) == codes.Unimplemented {
			return true, nil
		}
		if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
			m.c.Logger.Warn("the health of devices is unknown, asking their driver again", "driver", d.info.Name, "error",
				bounded.Text(err.Error(), maxError))
		}
		return false, nil
	})
}

// receive receives from one stream until it ends. heard is whether the driver has said something.
func (m *Manager) receive(ctx context.Context, d *driver) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.watchHealth(ctx)
	if err != nil {
		return false, err
	}
	var expiry *time.Timer
	expiry = time.AfterFunc(time.Hour, func() {
		_ = m.guard.Do("health of devices", func() {
			if next := m.said(d, map[string]deviceHealth{}); !next.IsZero() {
				expiry.Reset(time.Until(next))
			}
		}, "driver", d.info.Name)
	})
	defer expiry.Stop()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		now := time.Now()
		said, err := healths(answer, now)
		if err != nil {
			return heard, err
		}
		heard = true
		if next := m.said(d, said); !next.IsZero() {
			expiry.Reset(time.Until(next))
		}
	}
}

func (d *driver) watchHealth(ctx context.Context) (drahealth.DRAResourceHealth_NodeWatchResourcesClient, error) {
	if healthService(d.info.Versions) == drahealth.DRAResourceHealthService {
		return drahealth.NewDRAResourceHealthClient(d.conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	}
	return drahealth.V1Alpha1ClientWrapper{
		Client: drahealthalpha.NewDRAResourceHealthClient(d.conn),
	}.NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
}

// healths interprets a driver's answer. Names that no device has are left out.
func healths(answer *drahealth.NodeWatchResourcesResponse, now time.Time) (map[string]deviceHealth, error) {
	if n := len(answer.GetDevices()); n > maxHealths {
		return nil, fmt.Errorf("the driver speaks of %d devices, at most %d are accepted", n, maxHealths)
	}
	out := make(map[string]deviceHealth, len(answer.GetDevices()))
	for _, said := range answer.GetDevices() {
		pool, name := said.GetDevice().GetPoolName(), said.GetDevice().GetDeviceName()
		if len(pool) > resourcev1.PoolNameMaxLength || len(name) > resourcev1.PoolNameMaxLength {
			continue
		}
		h := deviceHealth{
			health:  corev1.ResourceHealthStatusUnknown,
			message: bounded.Text(said.GetMessage(), maxReason),
			until:   now.Add(healthTimeout),
		}
		switch said.GetHealth() {
		case drahealth.HealthStatus_HEALTHY:
			h.health = corev1.ResourceHealthStatusHealthy
		case drahealth.HealthStatus_UNHEALTHY:
			h.health = corev1.ResourceHealthStatusUnhealthy
		}
		if s := said.GetHealthCheckTimeoutSeconds(); s > 0 {
			h.until = now.Add(time.Duration(min(s, int64(maxTimeout/time.Second))) * time.Second)
		}
		out[healthKey(pool, name)] = h
	}
	return out, nil
}

func healthKey(pool, device string) string { return pool + "/" + device }

// said records what a driver says about all of its devices, nil if nothing is known any more, wakes the pods that it
// matters to, and returns when the first device will be unknown. Devices that it does not mention stay as they are
// until then.
func (m *Manager) said(d *driver, said map[string]deviceHealth) (next time.Time) {
	m.mu.Lock()
	now, changed := time.Now(), map[string]bool{}
	for key, was := range d.health {
		switch h, again := said[key]; {
		case again:
			changed[key] = h.health != was.health || h.message != was.message
		case said == nil || !now.Before(was.until):
			changed[key] = was.health != corev1.ResourceHealthStatusUnknown
		case len(said) < maxHealths:
			said[key] = was
		default:
			changed[key] = was.health != corev1.ResourceHealthStatusUnknown
		}
	}
	for key, h := range said {
		if _, known := d.health[key]; !known {
			changed[key] = h.health != corev1.ResourceHealthStatusUnknown || h.message != ""
		}
		if next.IsZero() || h.until.Before(next) {
			next = h.until
		}
	}
	d.health = said
	pods := m.users(d.info.Name, changed)
	m.mu.Unlock()
	if len(pods) > 0 && m.c.HealthChanged != nil {
		m.c.HealthChanged(pods)
	}
	return next
}

// users returns the pods that have one of the changed devices of a driver. Called with the lock held.
func (m *Manager) users(driver string, changed map[string]bool) (out []types.UID) {
	for _, c := range m.claims {
		if slices.ContainsFunc(c.Devices, func(d device) bool {
			return d.Driver == driver && changed[healthKey(d.Pool, d.Name)]
		}) {
			out = append(out, c.Pods...)
		}
	}
	return out
}

// Health returns the health of the devices that a container has by resource claims, in a fixed order.
func (m *Manager) Health(p *corev1.Pod, c *corev1.Container) (out []corev1.ResourceStatus) {
	for _, want := range c.Resources.Claims {
		i := slices.IndexFunc(p.Spec.ResourceClaims, func(of corev1.PodResourceClaim) bool { return of.Name == want.Name })
		if i < 0 {
			continue
		}
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		of := corev1.ResourceName("claim:" + want.Name)
		if want.Request != "" {
			of += corev1.ResourceName("/" + want.Request)
		}
		if list := m.healthOf(p.UID, *name, want.Request); len(list) > 0 {
			out = append(out, corev1.ResourceStatus{Name: of, Resources: list})
		}
	}
	for _, r := range extendedRequests(p, c) {
		name := p.Status.ExtendedResourceClaimStatus.ResourceClaimName
		if list := m.healthOf(p.UID, name, r); len(list) > 0 {
			out = append(out, corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + name + "/" + r), Resources: list})
		}
	}
	return out
}

// healthOf returns the health of the devices that a pod has by a claim for a request; "" is all requests.
func (m *Manager) healthOf(pod types.UID, name, request string) (out []corev1.ResourceHealth) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := map[corev1.ResourceID]bool{}
	for _, c := range m.claims {
		if c.Name != name || !slices.Contains(c.Pods, pod) {
			continue
		}
		for _, d := range c.Devices {
			id := corev1.ResourceID(d.Driver + "/" + d.Pool + "/" + d.Name)
			if len(d.CDI) > 0 {
				id = corev1.ResourceID(d.CDI[0])
			}
			if d.serves(request) && !seen[id] {
				seen[id] = true
				out = append(out, m.health(d, id))
			}
		}
	}
	slices.SortFunc(out, func(a, b corev1.ResourceHealth) int {
		return strings.Compare(string(a.ResourceID), string(b.ResourceID))
	})
	return out
}

// health is what the newest driver of its name says about a device. Called with the lock held.
func (m *Manager) health(d device, id corev1.ResourceID) corev1.ResourceHealth {
	out := corev1.ResourceHealth{ResourceID: id, Health: corev1.ResourceHealthStatusUnknown}
	if list := m.drivers[d.Driver]; len(list) > 0 {
		if h, known := list[len(list)-1].health[healthKey(d.Pool, d.Name)]; known && time.Now().Before(h.until) {
			out.Health = h.health
			if h.message != "" {
				out.Message = &h.message
			}
		}
	}
	return out
}

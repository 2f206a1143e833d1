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

// Health of devices (KEP-4680): drivers that implement the service DRAResourceHealth stream it, and it becomes part
// of the status of the containers that use the devices. It is unknown if the driver has not reported it, or not
// confirmed it in time.

const (
	maxHealths    = 16384            // devices per driver, as in the kubelet
	healthTimeout = 30 * time.Second // default time after which an unconfirmed health is unknown
	maxTimeout    = 24 * time.Hour
	maxReason     = 1024 // bytes of a driver's message
)

// deviceHealth is the last reported health of a device.
type deviceHealth struct {
	health  corev1.ResourceHealthStatus
	message string
	until   time.Time // when it becomes unknown
}

// healthService returns the newest supported health service that a driver offers, "" if there is none.
func healthService(versions []string) string {
	for _, v := range []string{drahealth.DRAResourceHealthService, drahealthalpha.DRAResourceHealthService} {
		if slices.Contains(versions, v) {
			return v
		}
	}
	return ""
}

// listen starts watching the health of new drivers, until they are gone or ctx is done.
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

// hear receives the health of a driver's devices until ctx is done. It opens another stream when one ends.
func (m *Manager) hear(ctx context.Context, d *driver) {
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 7, Cap: time.Minute}
	pause, heard := pauses.DelayFunc(), false
	next := func() time.Duration {
		if heard { // a driver may limit the duration of a stream
			pause = pauses.DelayFunc()
		}
		return pause()
	}
	_ = wait.DelayFunc(next).Until(ctx, true, true, func(ctx context.Context) (done bool, err error) {
		heard, err = m.receive(ctx, d)
		if ctx.Err() == nil {
			m.said(d, nil) // their health is unknown without a stream
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

// receive receives from one stream until it ends. heard is true if the driver sent something.
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

// healths converts a driver's response. It ignores names that are too long for a device.
func healths(answer *drahealth.NodeWatchResourcesResponse, now time.Time) (map[string]deviceHealth, error) {
	if n := len(answer.GetDevices()); n > maxHealths {
		return nil, fmt.Errorf("the driver reported %d devices, at most %d are allowed", n, maxHealths)
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

// said records the reported health of a driver's devices, notifies the pods that use changed ones, and returns when
// the first device becomes unknown. Devices that are not in the report keep their health until it expires. A nil
// report makes all unknown.
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

// users returns the pods that use one of a driver's changed devices. Called with the lock held.
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

// Health returns the health of a container's devices from resource claims, in a fixed order.
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

// healthOf returns the health of a claim's devices for a request; "" means all requests.
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

// health returns a device's health from the newest driver of its name. Called with the lock held.
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

package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

const (
	maxMessage  = 4 << 20
	maxDevices  = 1024 // per claim and driver
	maxRequests = 64   // of one device
	maxCDI      = 64   // of one device
	maxShare    = 64   // bytes of a share ID, which is a UUID
	// callTimeout limits a call, as in the kubelet.
	callTimeout = 45 * time.Second
	maxError    = 1024 // bytes of a driver's error
)

type driver struct {
	info plugins.Info
	conn *grpc.ClientConn
	// The manager's lock guards stop and health. stop ends the health stream; it is nil if none was started. health
	// is by pool and device.
	stop   context.CancelFunc
	health map[string]deviceHealth
}

var _ plugins.Handler = (*Manager)(nil)

// Validate implements plugins.Handler.
func (m *Manager) Validate(info plugins.Info) error {
	if errs := validation.IsDNS1123Subdomain(strings.ToLower(info.Name)); len(errs) > 0 {
		return fmt.Errorf("invalid driver name %.300q: %s", info.Name, strings.Join(errs, ", "))
	}
	if !slices.Contains(info.Versions, draplugin.DRAPluginService) {
		return fmt.Errorf("none of the DRA gRPC services advertised by driver %s are supported: this node supports %s",
			info.Name, draplugin.DRAPluginService)
	}
	return nil
}

// Register implements plugins.Handler. During an update, the newer of two registrations is used.
func (m *Manager) Register(_ context.Context, info plugins.Info) error {
	conn, err := m.c.Dir.Dial(info.Endpoint, maxMessage)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.known, info.Name) {
		if len(m.known) >= maxDrivers {
			return errors.Join(fmt.Errorf("this node has %d drivers already", maxDrivers), conn.Close())
		}
		m.known = append(m.known, info.Name)
		if err := m.save(); err != nil {
			m.known = m.known[:len(m.known)-1]
			return errors.Join(err, conn.Close())
		}
	}
	m.drivers[info.Name] = append(m.drivers[info.Name], &driver{info: info, conn: conn})
	delete(m.wipes, info.Name)
	m.notify() // makes Run watch its health
	return nil
}

// Deregister implements plugins.Handler.
func (m *Manager) Deregister(info plugins.Info) {
	if d := m.remove(info); d != nil {
		m.said(d, nil)
	}
}

func (m *Manager) remove(info plugins.Info) *driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.drivers[info.Name]
	i := slices.IndexFunc(list, func(d *driver) bool { return d.info.Endpoint == info.Endpoint })
	if i < 0 {
		return nil
	}
	d := list[i]
	if d.stop != nil {
		d.stop()
	}
	_ = d.conn.Close() // pending calls fail
	if list = slices.Delete(slices.Clone(list), i, i+1); len(list) > 0 {
		m.drivers[info.Name] = list
		return d
	}
	delete(m.drivers, info.Name)
	m.wipes[info.Name] = time.Now().Add(m.c.Wipe)
	m.notify()
	return d
}

// notify makes Run check drivers and wipes again. Called with the lock held.
func (m *Manager) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *Manager) driver(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.drivers[name]
	if len(list) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	return list[len(list)-1], nil
}

func (d *driver) prepare(ctx context.Context, claim *resourcev1.ResourceClaim) ([]device, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := draplugin.NewDRAPluginClient(d.conn).NodePrepareResources(ctx, &draplugin.NodePrepareResourcesRequest{
		Claims: []*draplugin.Claim{{Namespace: claim.Namespace, Uid: string(claim.UID), Name: claim.Name}}})
	if err != nil {
		return nil, err
	}
	of := answer.GetClaims()[string(claim.UID)]
	switch {
	case of == nil:
		return nil, errors.New("the driver did not answer for the claim")
	case of.Error != "":
		return nil, errors.New(bounded.Text(of.Error, maxError))
	case len(of.Devices) > maxDevices:
		return nil, fmt.Errorf("the driver answered with %d devices, at most %d are accepted", len(of.Devices), maxDevices)
	}
	out := make([]device, 0, len(of.Devices))
	for _, dev := range of.Devices {
		if len(dev.GetRequestNames()) > maxRequests || len(dev.GetCdiDeviceIds()) > maxCDI {
			return nil, fmt.Errorf("the driver answered with a device of more than %d requests or %d CDI names", maxRequests,
				maxCDI)
		}
		for _, id := range dev.GetCdiDeviceIds() {
			if _, _, err := cdi.Parse(id); err != nil {
				return nil, err
			}
		}
		for _, r := range dev.GetRequestNames() {
			if len(r) > 2*validation.DNS1123LabelMaxLength+1 {
				return nil, errors.New("the driver answered with a request name that is too long")
			}
		}
		if len(dev.GetPoolName()) > resourcev1.PoolNameMaxLength || len(dev.GetDeviceName()) > resourcev1.PoolNameMaxLength {
			return nil, errors.New("the driver answered with the name of a pool or device that is too long")
		}
		if len(dev.GetShareId()) > maxShare {
			return nil, errors.New("the driver answered with a share ID that is too long")
		}
		out = append(out, device{
			Driver:   d.info.Name,
			Pool:     dev.GetPoolName(),
			Name:     dev.GetDeviceName(),
			Share:    dev.GetShareId(),
			Requests: dev.GetRequestNames(),
			CDI:      dev.GetCdiDeviceIds(),
		})
	}
	return out, nil
}

func (d *driver) unprepare(ctx context.Context, uid types.UID, c *claim) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := draplugin.NewDRAPluginClient(d.conn).NodeUnprepareResources(ctx,
		&draplugin.NodeUnprepareResourcesRequest{
			Claims: []*draplugin.Claim{{Namespace: c.Namespace, Uid: string(uid), Name: c.Name}}})
	if err != nil {
		return err
	}
	of, ok := answer.GetClaims()[string(uid)]
	switch {
	case !ok:
		return errors.New("the driver did not answer for the claim")
	case of.GetError() != "":
		return errors.New(bounded.Text(of.GetError(), maxError))
	}
	return nil
}

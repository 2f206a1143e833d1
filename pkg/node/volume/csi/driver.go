// Package csi mounts the volumes of CSI drivers (Container Storage Interface, version 1) that run on this node.
//
// Its invariants: a call to a driver is recorded on disk before it is made, so that it is undone even if the agent
// was killed. Each call has a deadline and each volume its own lock: a driver that hangs affects only pods with its
// volumes. A volume is unstaged after the last pod that uses it.
package csi

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
)

const (
	// callTimeout limits all calls for one volume together, as in the kubelet.
	callTimeout = 2 * time.Minute
	// maxMessage limits a driver's messages, in bytes.
	maxMessage = 4 << 20
)

// Config of a Manager.
type Config struct {
	Client   client.Interface
	NodeName string
	// Node returns the Node object, nil before registration.
	Node func() *corev1.Node
	Dir  plugins.Dir
	// StateDir holds the records of staged volumes.
	StateDir string
	// Registered is called when a driver becomes available, so that the pods waiting for it can be retried.
	Registered func()
	// UseChanged is called when the result of VolumesInUse may have changed.
	UseChanged func()
	// Event records a Kubernetes event.
	Event  func(about corev1.ObjectReference, kind, reason, message string)
	Logger *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Manager is the volume plugin and the registration handler for CSI drivers. It is safe for concurrent use.
type Manager struct {
	c Config

	node sync.Mutex // serializes changes of the Node and the CSINode

	first    chan struct{} // closed when the first driver has registered
	began    sync.Once     // closes first
	changed  chan struct{} // capacity 1: drivers or renewals changed
	mu       sync.Mutex
	drivers  map[string]driver
	renewals map[string]renewal // by driver, registered or not
	staged   map[string]*staged // by key
}

type driver struct {
	endpoint string
	version  *utilversion.Version
}

// New returns a Manager. It loads the records of staged volumes.
func New(c Config) (*Manager, error) {
	m := &Manager{
		c:        c,
		first:    make(chan struct{}),
		changed:  make(chan struct{}, 1),
		drivers:  map[string]driver{},
		renewals: map[string]renewal{},
		staged:   map[string]*staged{},
	}
	return m, m.load()
}

// Validate implements plugins.Handler.
func (m *Manager) Validate(i plugins.Info) error {
	_, err := m.version(i)
	if err != nil {
		return fmt.Errorf("validation failed for CSI Driver %s at endpoint %s: %w", i.Name, i.Endpoint, err)
	}
	return nil
}

func (m *Manager) version(i plugins.Info) (*utilversion.Version, error) {
	if len(i.Versions) == 0 {
		return nil, fmt.Errorf("CSI driver %q failed. Plugin returned an empty list for supported versions", i.Name)
	}
	highest, err := utilversion.HighestSupportedVersion(i.Versions)
	if err != nil {
		return nil, fmt.Errorf("CSI driver %q failed. None of the versions specified %q are supported. err=%w", i.Name,
			i.Versions, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if have, has := m.drivers[i.Name]; has && !have.version.LessThan(highest) && have.endpoint != i.Endpoint {
		return nil, fmt.Errorf("CSI driver %q failed. Another driver with the same name is already registered with a "+
			"higher supported version: %q", i.Name, have.version)
	}
	return highest, nil
}

// Register implements plugins.Handler. It adds the driver to the Node and the CSINode.
func (m *Manager) Register(ctx context.Context, i plugins.Info) error {
	version, err := m.version(i)
	if err != nil {
		return err
	}
	d := driver{endpoint: i.Endpoint, version: version}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := m.ask(ctx, d)
	if err != nil {
		return err
	}
	if err := m.publish(ctx, i.Name, info); err != nil {
		return err
	}
	m.mu.Lock()
	m.drivers[i.Name] = d
	m.wake()
	m.mu.Unlock()
	m.began.Do(func() { close(m.first) })
	m.c.Registered()
	return nil
}

// Deregister implements plugins.Handler.
func (m *Manager) Deregister(i plugins.Info) {
	m.mu.Lock()
	have, has := m.drivers[i.Name]
	ours := has && have.endpoint == i.Endpoint
	if ours {
		delete(m.drivers, i.Name)
		m.wake()
	}
	m.mu.Unlock()
	if !ours {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := m.withdraw(ctx, i.Name); err != nil {
		m.c.Logger.Warn("could not remove CSI driver from node", "driver", i.Name, "error", err)
	}
}

type connection struct {
	conn *grpc.ClientConn
	spec.NodeClient
	can map[spec.NodeServiceCapability_RPC_Type]bool
}

// connect connects to a registered driver. The error texts are the kubelet's.
func (m *Manager) connect(ctx context.Context, name string) (*connection, error) {
	m.mu.Lock()
	d, has := m.drivers[name]
	m.mu.Unlock()
	if !has {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	conn, err := m.c.Dir.Dial(d.endpoint, maxMessage)
	if err != nil {
		return nil, err
	}
	c := &connection{conn: conn, NodeClient: spec.NewNodeClient(conn), can: map[spec.NodeServiceCapability_RPC_Type]bool{}}
	response, err := c.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		conn.Close()
		return nil, err
	}
	for _, capability := range response.GetCapabilities() {
		c.can[capability.GetRpc().GetType()] = true
	}
	return c, nil
}

func (c *connection) close() { _ = c.conn.Close() }

func (m *Manager) describe(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	var d storagev1.CSIDriver
	err := m.c.Client.Get(ctx, types.NamespacedName{Name: name}, &d)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // the object is optional
	}
	return &d, err
}

// VolumesInUse returns the attached volumes that pods use, for the Node's status. They must not be detached.
func (m *Manager) VolumesInUse() []corev1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []corev1.UniqueVolumeName
	for _, s := range m.staged {
		if s.Attached && len(s.Users) > 0 {
			names = append(names, UniqueName(s.Driver, s.Handle))
		}
	}
	sort.Slice(names, func(i, j int) bool { return names[i] < names[j] })
	return names
}

// UniqueName returns the name of a volume in the Node's status.
func UniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(pluginName + "/" + driver + "^" + handle)
}

// below returns a path below the shared directory: own is the path for the agent, public the path for drivers.
func (m *Manager) below(parts ...string) (own, public string) {
	public = m.c.Dir.Path(parts...)
	return filepath.Join(append([]string{m.c.Dir.Root()}, parts...)...), public
}

func escape(name string) string { return strings.ReplaceAll(name, "/", "~") }

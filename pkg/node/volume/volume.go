// Package volume sets up and tears down the volumes of pods. Each kind of volume is a Plugin, with Setup and Teardown
// side by side: emptyDir, hostPath, image, configMap, secret, downwardAPI, projected and local.
//
// Its invariant: a plugin records each resource in the pod's directory before it acquires it. So Teardown needs only
// the pod's UID and undoes exactly what Setup did, also after the agent was killed. It does not follow symbolic links
// that containers made, and detaches only recorded mounts.
//
// Mounts are created detached (fsopen(2), open_tree(2)), so that their identity can be recorded before they are
// attached. If another process mounted something inside a volume, such as a container with bidirectional propagation,
// Teardown fails with an error that names the mount, like the kubelet, and touches neither the mount nor its files.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

const (
	volumesDir  = "volumes"
	subPathsDir = "subpaths"
)

// Config of a Manager.
type Config struct {
	Client client.Interface
	// Dir holds one directory per pod, on disk.
	Dir string
	// MemoryDir is the mount point of the node's tmpfs for volumes made of API objects.
	MemoryDir string
	// Changed is called when an object that a pod's volumes or environment reference has changed.
	Changed func(types.UID)
	// LocalDir holds the directories of volumes provisioned on this node. It is created with the first volume.
	LocalDir string
	// Node returns the Node object, nil before registration. A nil function disables the check of node affinity.
	Node   func() *corev1.Node
	HostIP string
	// Allocatable returns the node's allocatable resources: a resourceFieldRef's value for a missing limit.
	Allocatable func() corev1.ResourceList
	// Plugins handle additional kinds of volumes.
	Plugins []Plugin
	// Images provides the layers for image volumes.
	Images Images
	Logger *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Manager sets up and tears down volumes. It is safe for concurrent use, with one call per pod at a time.
type Manager struct {
	c            Config
	objects      *Objects
	tokens       *tokens
	certificates *podCertificates
	plugins      []Plugin
	local        *Directories

	mu      sync.Mutex
	records map[types.UID]*podRecord
}

// Ready is the result of Setup.
type Ready struct {
	// Volumes by name.
	Volumes map[string]Mounted
	// Refresh is when Setup should run again to renew a token; zero means never.
	Refresh time.Time
}

// New returns a Manager. It mounts nothing; Start does. Objects.Run runs the watches.
func New(c Config) *Manager {
	m := &Manager{
		c:            c,
		objects:      newObjects(c.Client, c.Changed, c.Logger),
		tokens:       newTokens(c.Client),
		certificates: newPodCertificates(c.Client),
		records:      map[types.UID]*podRecord{},
	}
	m.local = &Directories{dir: c.LocalDir, inUse: m.usedBy, fail: c.Failpoints}
	m.plugins = []Plugin{
		hostPath{},
		local{m.local},
		emptyDir{allocatable: c.Allocatable, fail: c.Failpoints},
		images{views: c.Images, fail: c.Failpoints},
	}
	s := &sources{
		objects:      m.objects,
		tokens:       m.tokens,
		certificates: m.certificates,
		hostIP:       c.HostIP,
		allocatable:  c.Allocatable,
	}
	m.plugins = slices.Concat(m.plugins, objectPlugins(s, c.Failpoints), c.Plugins)
	return m
}

// Objects returns the reader of the config maps and secrets that pods reference.
func (m *Manager) Objects() *Objects { return m.objects }

// Directories returns the volumes that are provisioned on this node.
func (m *Manager) Directories() *Directories { return m.local }

// Start mounts the tmpfs for volumes made of API objects, unless it is mounted already.
func (m *Manager) Start() error {
	if err := os.MkdirAll(m.c.Dir, 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(m.c.MemoryDir, 0o755); err != nil {
		return err
	}
	return m.mountMemory()
}

// Close unmounts the tmpfs, unless a pod still has files in it.
func (m *Manager) Close() error {
	left, err := os.ReadDir(m.c.MemoryDir)
	if err != nil || len(left) > 0 {
		return nil
	}
	if _, mounted, err := mountAt(m.c.MemoryDir); err != nil || !mounted {
		return err
	}
	return unix.Unmount(m.c.MemoryDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// PodDir returns the pod's directory on disk.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.c.Dir, string(uid)) }

// Setup sets up missing volumes and updates volumes with changed sources. podIP may be empty.
func (m *Manager) Setup(ctx context.Context, p *corev1.Pod, podIP string) (Ready, error) {
	out := Ready{Volumes: make(map[string]Mounted, len(p.Spec.Volumes))}
	refs := References(p)
	if len(refs) > maxWatched {
		refs, out.Refresh = refs[:maxWatched], time.Now().Add(unwatched)
	}
	m.objects.Track(p.UID, refs)
	if err := os.MkdirAll(filepath.Join(m.PodDir(p.UID), volumesDir), 0o750); err != nil {
		return out, err
	}
	if err := m.c.Failpoints.At("volume.dir"); err != nil {
		return out, err
	}
	r, err := m.record(p.UID)
	if err != nil {
		return out, err
	}
	var errs []error
	failed := func(name string, err error) {
		errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", name, err))
	}
	plugins, claimed := map[string]Plugin{}, map[string]volumeRecord{}
	persistent := map[string]*Persistent{}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		behind, err := m.persistent(ctx, p, v, r.has(v.Name))
		if err != nil {
			failed(v.Name, err)
			continue
		}
		plugin := m.pluginFor(&v.VolumeSource, behind)
		if plugin == nil {
			failed(v.Name, unsupported(behind))
			continue
		}
		record := volumeRecord{Plugin: plugin.Name()}
		if behind != nil {
			record.Persistent, persistent[v.Name] = behind.Volume.Name, behind
		}
		plugins[v.Name], claimed[v.Name] = plugin, record
	}
	if err := r.claim(claimed); err != nil {
		return out, errors.Join(append(errs, err)...)
	}
	memory := int64(maxPodObjects)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		plugin := plugins[v.Name]
		if plugin == nil {
			continue
		}
		mounted, err := plugin.Setup(ctx,
			Pod{
				Pod:        p,
				Volume:     v.Name,
				Source:     &v.VolumeSource,
				Persistent: persistent[v.Name],
				IP:         podIP,
				memory:     &memory,
				tokens:     m.tokens,
			}, m.volume(p.UID, v.Name, r))
		if err != nil {
			failed(v.Name, err)
			continue
		}
		out.Volumes[v.Name] = mounted
		if t := mounted.Refresh; !t.IsZero() && (out.Refresh.IsZero() || t.Before(out.Refresh)) {
			out.Refresh = t
		}
	}
	return out, errors.Join(errs...)
}

// ErrAttachLimit means that the node cannot attach another volume: the pod has to be replaced on another node.
var ErrAttachLimit = errors.New("node has reached its volume attachment limit")

func unsupported(p *Persistent) error {
	if p != nil {
		return fmt.Errorf("persistent volumes of the type of %s are not supported on this node; use hostPath, local or csi",
			p.Volume.Name)
	}
	return errors.New("this type of volume is not supported on this node; use emptyDir, hostPath, image, configMap, " +
		"secret, downwardAPI, projected or a persistentVolumeClaim")
}

func fsGroup(p *corev1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

// Teardown releases the pod's volumes, if any, and removes the pod's directory if forget is set.
func (m *Manager) Teardown(ctx context.Context, uid types.UID, forget bool) error {
	m.objects.Track(uid, nil)
	m.tokens.forget(uid)
	m.certificates.forget(uid)
	r, err := m.record(uid)
	if err != nil {
		return err
	}
	all := r.content()
	if err := m.tearDownSubPaths(uid, all.SubPaths); err != nil {
		return err
	}
	if err := m.c.Failpoints.At("subpath.unmounted"); err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all.Volumes)) {
		if err := m.tearDown(ctx, uid, name, all.Volumes[name].Plugin, r); err != nil {
			errs = append(errs, fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return m.forget(ctx, uid, forget)
}

func (m *Manager) tearDown(ctx context.Context, uid types.UID, name, plugin string, r *podRecord) error {
	if !filepath.IsLocal(name) || filepath.Base(name) != name {
		return errors.New("invalid recorded name")
	}
	p, err := m.pluginNamed(plugin)
	if err != nil {
		return err
	}
	return p.Teardown(ctx, m.volume(uid, name, r))
}

// forget removes the directories of the volumes and then the record.
func (m *Manager) forget(ctx context.Context, uid types.UID, all bool) error {
	dir := m.PodDir(uid)
	for _, d := range []string{
		filepath.Join(dir, subPathsDir), filepath.Join(dir, volumesDir), filepath.Join(m.c.MemoryDir, string(uid)),
	} {
		if err := disk.RemoveAll(ctx, d); err != nil {
			return err
		}
		if err := m.c.Failpoints.At("volume.remove"); err != nil {
			return err
		}
	}
	m.mu.Lock()
	delete(m.records, uid)
	m.mu.Unlock()
	if all {
		return disk.RemoveAll(ctx, dir)
	}
	for _, name := range []string{recordFile + atomicfile.Suffix, recordFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// List returns the pods that have a directory on this node, on disk or on the tmpfs.
func (m *Manager) List() ([]types.UID, error) {
	seen := map[types.UID]bool{}
	var out []types.UID
	for _, d := range []string{m.c.Dir, m.c.MemoryDir} {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if uid := types.UID(e.Name()); e.IsDir() && !seen[uid] {
				seen[uid] = true
				out = append(out, uid)
			}
		}
	}
	return out, nil
}

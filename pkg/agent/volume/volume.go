// Package volume prepares the volumes of pods: emptyDir, hostPath, configMap,
// secret, downwardAPI and projected.
//
// It may import client and the mount system calls. Its invariant: everything
// of a pod's volumes lies in two directories named by the pod's UID, one on disk
// and one on the node's tmpfs, so that Teardown needs to know the UID alone,
// and Setup can be repeated at any time without touching what is in use.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/agent/disk"
	"github.com/coracle-dev/coracle/pkg/client"
)

// Config of a Manager.
type Config struct {
	Client client.Interface
	// Dir holds one directory per pod, on disk: emptyDir volumes and subPath binds.
	Dir string
	// MemoryDir is where the node's tmpfs for object volumes is mounted.
	MemoryDir string
	// Changed is called when an object that a pod's volumes or environment refer to changed.
	Changed func(types.UID)
	// HostIP is the node's address.
	HostIP string
	// Allocatable gives the node's allocatable resources, the default of a resourceFieldRef's limits.
	Allocatable func() corev1.ResourceList
	Logger      *slog.Logger
}

// Manager prepares and releases volumes. Safe for concurrent use, one call per pod at a time.
type Manager struct {
	c       Config
	objects *Objects

	mu     sync.Mutex
	tokens map[string]token
}

// Ready is what Setup made.
type Ready struct {
	// Paths maps the volumes' names to host paths.
	Paths map[string]string
	// Refresh is when Setup should run again to renew a token; zero for never.
	Refresh time.Time
}

// New makes a Manager. Start mounts; the watches of Objects end with the context given to Objects.Run.
func New(c Config) *Manager {
	return &Manager{c: c, objects: newObjects(c.Client, c.Changed, c.Logger), tokens: map[string]token{}}
}

// Objects are the config maps and secrets that pods refer to.
func (m *Manager) Objects() *Objects { return m.objects }

// Start mounts the tmpfs for object volumes if it is not there yet.
func (m *Manager) Start() error {
	if err := os.MkdirAll(m.c.Dir, 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(m.c.MemoryDir, 0o755); err != nil {
		return err
	}
	return m.mountMemory()
}

// Close unmounts the tmpfs if no pod has anything in it; else it stays for the next Start.
func (m *Manager) Close() error {
	left, err := os.ReadDir(m.c.MemoryDir)
	if err != nil || len(left) > 0 {
		return nil
	}
	if mounted, err := isMountPoint(m.c.MemoryDir); err != nil || !mounted {
		return err
	}
	return unix.Unmount(m.c.MemoryDir, unix.MNT_DETACH)
}

// PodDir is the pod's directory on disk.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.c.Dir, string(uid)) }

// Setup makes what is missing of the pod's volumes and updates those whose sources changed. podIP may be
// empty while the pod has none.
func (m *Manager) Setup(ctx context.Context, p *corev1.Pod, podIP string) (Ready, error) {
	r := Ready{Paths: make(map[string]string, len(p.Spec.Volumes))}
	m.objects.Track(p.UID, References(p))
	if err := os.MkdirAll(m.PodDir(p.UID), 0o750); err != nil {
		return r, err
	}
	var errs []error
	room := int64(maxPodObjects)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		path, refresh, err := m.one(ctx, p, v, podIP, &room)
		if err != nil {
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err))
			continue
		}
		r.Paths[v.Name] = path
		if !refresh.IsZero() && (r.Refresh.IsZero() || refresh.Before(r.Refresh)) {
			r.Refresh = refresh
		}
	}
	return r, errors.Join(errs...)
}

func (m *Manager) one(ctx context.Context, p *corev1.Pod, v *corev1.Volume, podIP string, room *int64) (string, time.Time, error) {
	none := time.Time{}
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path, none, hostPath(v.HostPath)
	case v.EmptyDir != nil:
		path, err := m.emptyDir(p, v)
		return path, none, err
	}
	files, refresh, err := m.payload(ctx, p, v, podIP)
	if err != nil {
		return "", none, err
	}
	if *room -= memoryOf(files); *room < 0 {
		return "", none, fmt.Errorf("the pod's secrets, config maps and other objects would take more than %d MiB of the node's memory", maxPodObjects>>20)
	}
	dir := filepath.Join(m.c.MemoryDir, string(p.UID), v.Name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return "", none, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", none, err
	}
	mode := 0o777 | os.ModeSticky
	if g := fsGroup(p); g != nil {
		mode |= os.ModeSetgid
		if err := os.Chown(dir, -1, int(*g)); err != nil {
			return "", none, err
		}
	}
	if err := os.Chmod(dir, mode); err != nil {
		return "", none, err
	}
	return dir, refresh, WriteAtomic(dir, files, fsGroup(p))
}

func fsGroup(p *corev1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

func (m *Manager) emptyDirPath(uid types.UID, name string) string {
	return filepath.Join(m.PodDir(uid), "volumes", name)
}

func (m *Manager) emptyDir(p *corev1.Pod, v *corev1.Volume) (string, error) {
	dir := m.emptyDirPath(p.UID, v.Name)
	switch v.EmptyDir.Medium {
	case corev1.StorageMediumDefault, corev1.StorageMediumMemory:
	default:
		return "", fmt.Errorf("emptyDir medium %q is not supported on this node", v.EmptyDir.Medium)
	}
	_, statErr := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	fresh := statErr != nil
	if v.EmptyDir.Medium == corev1.StorageMediumMemory {
		mounted, err := isMountPoint(dir)
		if err != nil {
			return "", err
		}
		if !mounted {
			options := "mode=0777"
			if size := m.memorySize(p, v.EmptyDir); size > 0 {
				options += fmt.Sprintf(",size=%d", size)
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
				return "", fmt.Errorf("mount tmpfs: %w", err)
			}
			fresh = true
		}
	}
	if !fresh {
		return dir, nil
	}
	mode := fs.FileMode(0o777)
	if g := fsGroup(p); g != nil {
		if err := os.Chown(dir, -1, int(*g)); err != nil {
			return "", err
		}
		mode |= os.ModeSetgid
	}
	return dir, os.Chmod(dir, mode)
}

func hostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	if kind == corev1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(h.Path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	switch kind {
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(h.Path, 0o755)
		}
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	ok := false
	if !missing {
		mode := info.Mode()
		switch kind {
		case corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory:
			ok = mode.IsDir()
		case corev1.HostPathFileOrCreate, corev1.HostPathFile:
			ok = mode.IsRegular()
		case corev1.HostPathSocket:
			ok = mode&os.ModeSocket != 0
		case corev1.HostPathCharDev:
			ok = mode&os.ModeCharDevice != 0
		case corev1.HostPathBlockDev:
			ok = mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0
		}
	}
	if !ok {
		names := map[corev1.HostPathType]string{
			corev1.HostPathDirectoryOrCreate: "a directory", corev1.HostPathDirectory: "a directory",
			corev1.HostPathFileOrCreate: "a file", corev1.HostPathFile: "a file", corev1.HostPathSocket: "a socket file",
			corev1.HostPathCharDev: "a character device", corev1.HostPathBlockDev: "a block device",
		}
		return fmt.Errorf("hostPath type check failed: %s is not %s", h.Path, names[kind])
	}
	return nil
}

// Teardown releases all of the pod's volumes and, with forget, its directory. Unknown is no error.
func (m *Manager) Teardown(ctx context.Context, uid types.UID, forget bool) error {
	m.objects.Track(uid, nil)
	m.mu.Lock()
	for k := range m.tokens {
		if strings.HasPrefix(k, string(uid)+"/") {
			delete(m.tokens, k)
		}
	}
	m.mu.Unlock()
	dir := m.PodDir(uid)
	if err := unmountBelow(dir); err != nil {
		return err
	}
	errs := []error{disk.RemoveAll(ctx, filepath.Join(m.c.MemoryDir, string(uid)))}
	if forget {
		errs = append(errs, disk.RemoveAll(ctx, dir))
	} else {
		errs = append(errs, disk.RemoveAll(ctx, filepath.Join(dir, "volumes")), disk.RemoveAll(ctx, filepath.Join(dir, "subpaths")))
	}
	return errors.Join(errs...)
}

// Usage is what the pod's emptyDir volumes on disk take, by name. It walks them.
func (m *Manager) Usage(ctx context.Context, p *corev1.Pod) (map[string]disk.Usage, error) {
	all := map[string]disk.Usage{}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
			continue
		}
		u, err := disk.Of(ctx, m.emptyDirPath(p.UID, v.Name))
		if err != nil {
			return nil, err
		}
		all[v.Name] = u
	}
	return all, nil
}

// List names the pods that have something on this node.
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

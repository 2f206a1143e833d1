package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/failpoint"
)

const (
	// recordFile is in the pod's directory, where containers cannot write.
	recordFile = "volumes.json"
	// maxRecord limits a record, in bytes. Pod objects are at most 1.5 MiB, so a real record is smaller.
	maxRecord = 8 << 20
)

// podRecord lists what a pod's volumes have acquired or are about to acquire. It is written before anything is
// acquired and removed after everything is released. It is safe for concurrent use.
type podRecord struct {
	path string
	fail failpoint.Hook

	images sync.Mutex // serializes mounts of image volumes

	mu sync.Mutex
	recorded
}

type recorded struct {
	Volumes map[string]volumeRecord `json:"volumes,omitempty"` // by name
	// SubPaths are the mounts of subPaths, by path below subPathsDir.
	SubPaths map[string]mountID `json:"subPaths,omitempty"`
}

type volumeRecord struct {
	Plugin string          `json:"plugin"`
	State  json.RawMessage `json:"state,omitempty"`
	// Persistent is the name of the PersistentVolume, empty for other volumes.
	Persistent string `json:"persistent,omitempty"`
}

// record returns a pod's record, which is empty if nothing is recorded. The pod's directory need not exist.
func (m *Manager) record(uid types.UID) (*podRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[uid]; r != nil {
		return r, nil
	}
	r := &podRecord{path: filepath.Join(m.PodDir(uid), recordFile), fail: m.c.Failpoints}
	data, err := bounded.File(r.path, maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.recorded = adopt(m.PodDir(uid))
	case err != nil:
		return nil, fmt.Errorf("read the record of a pod's volumes: %w", err)
	default:
		if err := json.Unmarshal(data, &r.recorded); err != nil {
			// The file is replaced atomically, so the machine lost power, and with it all mounts.
			m.c.Logger.Warn("unreadable record of a pod's volumes", "path", r.path, "error", err)
			r.recorded = adopt(m.PodDir(uid))
		}
	}
	if r.Volumes == nil {
		r.Volumes = map[string]volumeRecord{}
	}
	if r.SubPaths == nil {
		r.SubPaths = map[string]mountID{}
	}
	m.records[uid] = r
	return r, nil
}

// adopt builds the missing record of a pod from the contents of its directory, for pods of agents without records.
func adopt(podDir string) recorded {
	r := recorded{Volumes: map[string]volumeRecord{}, SubPaths: map[string]mountID{}}
	volumes, _ := os.ReadDir(filepath.Join(podDir, volumesDir))
	for _, v := range volumes {
		rec := volumeRecord{Plugin: emptyDirName}
		path := filepath.Join(podDir, volumesDir, v.Name())
		var st unix.Statfs_t
		if id, mounted, err := mountAt(path); err == nil && mounted && unix.Statfs(path, &st) == nil &&
			st.Type == unix.TMPFS_MAGIC {
			rec.State, _ = json.Marshal(emptyDirState{Tmpfs: id})
		}
		r.Volumes[v.Name()] = rec
	}
	root := filepath.Join(podDir, subPathsDir)
	binds, _ := filepath.Glob(filepath.Join(root, "*", "*", "*"))
	for _, path := range binds {
		if id, mounted, err := mountAt(path); err == nil && mounted {
			r.SubPaths[strings.TrimPrefix(path, root+"/")] = id
		}
	}
	return r
}

// write replaces the file atomically. Called with the lock held.
func (r *podRecord) write() error {
	if err := r.fail.At("volume.record"); err != nil {
		return err
	}
	return atomicfile.WriteJSON(r.path, r.recorded)
}

func (r *podRecord) state(name string) json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Volumes[name].State
}

func (r *podRecord) persistent(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Volumes[name].Persistent
}

func (r *podRecord) setState(name string, state json.RawMessage) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.Volumes[name]
	v.State = state
	r.Volumes[name] = v
	return r.write()
}

func (r *podRecord) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, has := r.Volumes[name]
	return has
}

// claim records the plugins of volumes. A volume that has a plugin keeps it.
func (r *podRecord) claim(volumes map[string]volumeRecord) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for name, v := range volumes {
		if _, has := r.Volumes[name]; !has {
			r.Volumes[name] = v
			changed = true
		}
	}
	if !changed {
		if _, err := os.Lstat(r.path); err == nil {
			return nil
		}
	}
	return r.write()
}

func (r *podRecord) subPath(path string) (mountID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, has := r.SubPaths[path]
	return id, has
}

func (r *podRecord) setSubPath(path string, id mountID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.SubPaths[path] = id
	return r.write()
}

func (r *podRecord) content() recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := recorded{
		Volumes: make(map[string]volumeRecord, len(r.Volumes)), SubPaths: make(map[string]mountID, len(r.SubPaths)),
	}
	maps.Copy(c.Volumes, r.Volumes)
	maps.Copy(c.SubPaths, r.SubPaths)
	return c
}

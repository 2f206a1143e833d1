package csi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/host/boot"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// maxRecord limits the record of a staged volume, in bytes.
const maxRecord = 1 << 20

// staged is a persistent volume on this node, which pods may share. Its record exists as long as it has users.
type staged struct {
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Dir is the staging directory, relative to the shared directory. Path is the staging path that the driver got.
	Dir  string `json:"dir"`
	Path string `json:"path"`
	// Attached means that the volume is attached to the node, and must not be detached while it has users.
	Attached bool `json:"attached,omitempty"`
	// Boot is the boot ID at which the volume was staged, empty if it is not staged.
	Boot  string          `json:"boot,omitempty"`
	Users map[string]bool `json:"users"`

	busy chan struct{} // a lock: full while the volume is being staged or unstaged
}

func keyOf(driver, handle string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(driver+"\x00"+handle)))
}

// AttachmentName returns the VolumeAttachment's name for a volume and a node, like kube-controller-manager.
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

func (m *Manager) load() error {
	entries, err := os.ReadDir(m.c.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		data, err := bounded.File(filepath.Join(m.c.StateDir, e.Name()), maxRecord)
		s := &staged{busy: make(chan struct{}, 1)}
		if err == nil {
			err = json.Unmarshal(data, s)
		}
		if err != nil {
			// The file is replaced atomically, so the machine lost power, and with it all mounts.
			m.c.Logger.Warn("unreadable record of a staged volume", "path", e.Name(), "error", err)
			continue
		}
		m.staged[key] = s
	}
	return nil
}

// save writes the record of a volume, or removes it if the volume has no users. Called with the lock held.
func (m *Manager) save(key string, s *staged) error {
	path := filepath.Join(m.c.StateDir, key+".json")
	if len(s.Users) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(m.c.StateDir, 0o700); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(path, s); err != nil {
		return fmt.Errorf("record staged volume: %w", err)
	}
	return nil
}

// lock waits until no other call stages or unstages the volume.
func (s *staged) lock(ctx context.Context) error {
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another operation on the volume is in progress: %w", ctx.Err())
	}
}

func (s *staged) unlock() { <-s.busy }

// stage records a user of the volume, waits for the attachment, and has the driver stage it if it is not staged.
func (m *Manager) stage(ctx context.Context, c *connection, r *request, object *storagev1.CSIDriver,
	user string) error {
	key := keyOf(r.driver, r.handle)
	dir := filepath.Join("plugins", pluginName, escape(r.driver), fmt.Sprintf("%x", sha256.Sum256([]byte(r.handle))))
	own, public := m.below(dir, "globalmount")
	attach := attachRequired(object)
	s, err := m.use(key, user, staged{Driver: r.driver, Handle: r.handle, Dir: dir, Path: public, Attached: attach})
	if err != nil {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	if attach {
		if r.publishContext, err = m.attachment(ctx, r, object); err != nil {
			return err
		}
	}
	if !c.can[spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	r.staging = s.Path
	now := boot.ID()
	if s.Boot == now {
		return nil
	}
	if err := os.MkdirAll(own, 0o750); err != nil {
		return err
	}
	secrets, err := m.secrets(ctx, "NodeStageSecretRef", r.persistent.Spec.CSI.NodeStageSecretRef)
	if err != nil {
		return err
	}
	if err := m.c.Failpoints.At("csi.stage"); err != nil {
		return err
	}
	_, err = c.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
		VolumeId: r.handle, PublishContext: r.publishContext, StagingTargetPath: s.Path, VolumeCapability: capability(c, r),
		Secrets:       secrets,
		VolumeContext: r.persistent.Spec.CSI.VolumeAttributes,
	})
	if err != nil {
		return fmt.Errorf("MountVolume.MountDevice failed for volume %q : %w", r.name, err)
	}
	if err := m.c.Failpoints.At("csi.staged"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Boot = now
	return m.save(key, s)
}

// restore sets the request's staging path and publish context for a volume that is published already.
func (m *Manager) restore(ctx context.Context, c *connection, r *request, object *storagev1.CSIDriver) {
	m.mu.Lock()
	s := m.staged[keyOf(r.driver, r.handle)]
	m.mu.Unlock()
	if s != nil && c.can[spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		r.staging = s.Path
	}
	if attachRequired(object) {
		r.publishContext, _ = m.attachment(ctx, r, object) // the volume works without it
	}
}

// attachRequired reports whether volumes must be attached to nodes. As in Kubernetes, the default is true.
func attachRequired(object *storagev1.CSIDriver) bool {
	return object == nil || object.Spec.AttachRequired == nil || *object.Spec.AttachRequired
}

// use records a user of a volume before anything is acquired for it.
func (m *Manager) use(key, user string, fresh staged) (*staged, error) {
	m.mu.Lock()
	s := m.staged[key]
	if s == nil {
		s = &fresh
		s.Users, s.busy = map[string]bool{}, make(chan struct{}, 1)
	}
	if s.Users[user] {
		m.mu.Unlock()
		return s, nil
	}
	s.Users[user] = true
	s.Attached = s.Attached || fresh.Attached
	if err := m.save(key, s); err != nil {
		delete(s.Users, user)
		m.mu.Unlock()
		return nil, err
	}
	m.staged[key] = s
	m.mu.Unlock()
	m.c.UseChanged()
	return s, nil
}

// unstage removes a user of a volume. It has the driver unstage the volume for the last one.
func (m *Manager) unstage(ctx context.Context, c *connection, key, user string) error {
	m.mu.Lock()
	s := m.staged[key]
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	m.mu.Lock()
	last := s.Users[user] && len(s.Users) == 1
	if !last {
		defer m.mu.Unlock()
		if !s.Users[user] {
			return nil
		}
		delete(s.Users, user)
		return m.save(key, s)
	}
	s.Boot = "" // the volume no longer counts as staged
	err := m.save(key, s)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if c.can[spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		if _, err := c.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{
			VolumeId: s.Handle, StagingTargetPath: s.Path,
		}); err != nil {
			return fmt.Errorf("UnmountVolume.UnmountDevice failed: NodeUnstageVolume: %w", err)
		}
		if err := m.c.Failpoints.At("csi.unstaged"); err != nil {
			return err
		}
	}
	if !filepath.IsLocal(s.Dir) {
		return fmt.Errorf("invalid recorded directory %q", s.Dir)
	}
	own, _ := m.below(s.Dir)
	for _, path := range []string{filepath.Join(own, "globalmount"), own} {
		if err := removeEmpty(path); err != nil {
			return fmt.Errorf("the driver has unstaged the volume, but left %s: %w", s.Path, err)
		}
	}
	m.mu.Lock()
	delete(s.Users, user)
	err = m.save(key, s)
	if err == nil && len(s.Users) == 0 { // another pod may have been added meanwhile
		delete(m.staged, key)
	}
	m.mu.Unlock()
	m.c.UseChanged()
	return err
}

// attachment returns the metadata of the volume's attachment to this node. It fails until that exists.
func (m *Manager) attachment(ctx context.Context, r *request, object *storagev1.CSIDriver) (map[string]string, error) {
	name := AttachmentName(r.handle, r.driver, m.c.NodeName)
	var a storagev1.VolumeAttachment
	err := m.c.Client.Get(ctx, types.NamespacedName{Name: name}, &a)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // a node may read only its own
		return nil, notAttached(name)
	case err != nil:
		return nil, err
	case a.DeletionTimestamp != nil:
		return nil, fmt.Errorf("volume attachment is being deleted: VolumeAttachment %s", name)
	case !a.Status.Attached && a.Status.AttachError != nil:
		err := fmt.Errorf("AttachVolume.Attach failed for volume %q : %s", r.name, a.Status.AttachError.Message)
		if m.noRoom(ctx, r.pod, object, a.Status.AttachError) {
			err = fmt.Errorf("%w: %w", volume.ErrAttachLimit, err)
		}
		return nil, err
	case !a.Status.Attached:
		return nil, notAttached(name)
	}
	return a.Status.AttachmentMetadata, nil
}

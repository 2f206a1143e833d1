package csi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/host/boot"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

const pluginName = "kubernetes.io/csi"

// lookAgain is how often Setup runs for volumes whose driver has requiresRepublish or can expand volumes. Polling is
// needed because nodes are not authorized to watch claims and volumes.
const lookAgain = time.Minute

// state is the recorded state of a pod's volume. It is saved before the driver is called.
type state struct {
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Dir is the volume's directory, relative to the shared directory. Target is the driver's target path.
	Dir    string `json:"dir"`
	Target string `json:"target"`
	// Key is the key of the staged volume, empty for inline volumes.
	Key string `json:"key,omitempty"`
	// Boot is the boot ID at which the volume was published, empty if it is not published.
	Boot string `json:"boot,omitempty"`
}

// Name implements volume.Plugin.
func (m *Manager) Name() string { return pluginName }

// CanSupport implements volume.Plugin.
func (m *Manager) CanSupport(s *corev1.VolumeSource) bool { return s.CSI != nil }

// CanSupportPersistent implements volume.PersistentPlugin.
func (m *Manager) CanSupportPersistent(s *corev1.PersistentVolumeSource) bool { return s.CSI != nil }

type request struct {
	pod            *corev1.Pod
	driver, handle string
	// name is the name of the persistent volume, or of the pod's volume for an inline one.
	name          string
	fsType        string
	readOnly      bool
	attributes    map[string]string
	publishSecret *corev1.SecretReference
	persistent    *corev1.PersistentVolume // nil for inline volumes
	claim         *corev1.PersistentVolumeClaim
	mode          storagev1.VolumeLifecycleMode
	accessMode    corev1.PersistentVolumeAccessMode
	mountOptions  []string
	fsGroup       *int64
	// block means that the driver makes a device file at the target path instead of mounting a file system there.
	block bool
	// publishContext is what the controller plugin returned when it attached the volume.
	publishContext map[string]string
	// staging is the staging path that the driver got, empty if the driver does not stage volumes.
	staging string
}

func requestOf(p volume.Pod, name string) (*request, error) {
	r := &request{pod: p.Pod, accessMode: corev1.ReadWriteOnce}
	if sc := p.Spec.SecurityContext; sc != nil {
		r.fsGroup = sc.FSGroup
	}
	if p.Persistent == nil {
		src := p.Source.CSI
		sum := sha256.Sum256([]byte(string(p.UID) + name))
		r.driver, r.name, r.handle, r.mode = src.Driver, name, fmt.Sprintf("csi-%x", sum), storagev1.VolumeLifecycleEphemeral
		r.readOnly, r.attributes = src.ReadOnly != nil && *src.ReadOnly, src.VolumeAttributes
		if src.FSType != nil {
			r.fsType = *src.FSType
		}
		if src.NodePublishSecretRef != nil {
			r.publishSecret = &corev1.SecretReference{Namespace: p.Namespace, Name: src.NodePublishSecretRef.Name}
		}
		return r, nil
	}
	pv := p.Persistent.Volume
	src := pv.Spec.CSI
	r.persistent, r.claim, r.mode, r.block = pv, p.Persistent.Claim, storagev1.VolumeLifecyclePersistent,
		p.Persistent.Block()
	r.driver, r.name, r.handle, r.fsType, r.attributes = src.Driver, pv.Name, src.VolumeHandle, src.FSType,
		src.VolumeAttributes
	r.publishSecret, r.mountOptions = src.NodePublishSecretRef, pv.Spec.MountOptions
	r.readOnly = src.ReadOnly || p.Persistent.ReadOnly
	if len(pv.Spec.AccessModes) > 0 {
		r.accessMode = pv.Spec.AccessModes[0]
	}
	return r, nil
}

// Setup implements volume.Plugin. The error texts are the kubelet's.
func (m *Manager) Setup(ctx context.Context, p volume.Pod, v *volume.Volume) (volume.Mounted, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := requestOf(p, v.Name)
	if err != nil {
		return volume.Mounted{}, err
	}
	was, err := stateOf(v)
	if err != nil {
		return volume.Mounted{}, err
	}
	object, err := m.describe(ctx, r.driver)
	if err == nil {
		err = supports(object, r)
	}
	if err != nil {
		return volume.Mounted{}, err
	}
	republish := object != nil && object.Spec.RequiresRepublish != nil && *object.Spec.RequiresRepublish
	bootID := boot.ID()
	published := was.Boot == bootID && was.Boot != ""
	dir := filepath.Join("pods", string(p.UID), "volumes", escape(pluginName), escape(r.name))
	own, public := m.below(dir, "mount")
	out := volume.Mounted{Path: own, ReadOnly: r.readOnly, Block: r.block}
	if republish {
		out.Refresh = time.Now().Add(lookAgain)
	}
	c, err := m.connect(ctx, r.driver)
	if err != nil {
		if published {
			out.Refresh = time.Now().Add(lookAgain)
			return out, nil // the volume stays usable while its driver restarts
		}
		return out, err
	}
	defer c.close()
	if r.persistent != nil && c.can[spec.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		out.Refresh = time.Now().Add(lookAgain)
	}
	now := state{Driver: r.driver, Handle: r.handle, Dir: dir, Target: public, Boot: was.Boot}
	if was.Driver != "" {
		now.Target = was.Target
	}
	if r.persistent != nil {
		now.Key = keyOf(r.driver, r.handle)
	}
	if !published {
		now.Boot = ""
		if err := m.record(v, now); err != nil {
			return out, err
		}
	}
	if err := m.stageOrRestore(ctx, c, r, object, v, published); err != nil {
		return out, err
	}
	if !published || republish {
		if err := m.nodePublish(ctx, c, p, r, object, now); err != nil && !published {
			return out, err
		} else if err != nil {
			m.c.Logger.Warn("could not publish volume again", "pod", p.Namespace+"/"+p.Name, "volume", v.Name, "error", err)
			return out, nil
		}
	}
	if !published {
		if err := m.c.Failpoints.At("csi.published"); err != nil {
			return out, err
		}
		if fsGroupApplies(c, r, object) {
			if err := volume.SetOwner(ctx, p.Pod, own); err != nil {
				return out, err
			}
		}
		now.Boot = bootID
		if err := v.Save(now); err != nil {
			return out, err
		}
	}
	m.expandIfLarger(ctx, c, p, r, now.Target)
	return out, nil
}

// record saves the state before the volume is published, so that Teardown undoes it after a crash.
func (m *Manager) record(v *volume.Volume, s state) error {
	if err := v.Save(s); err != nil {
		return err
	}
	return m.c.Failpoints.At("csi.recorded")
}

// stageOrRestore stages a persistent volume, or restores the request's staging data if it is published already.
func (m *Manager) stageOrRestore(ctx context.Context, c *connection, r *request, object *storagev1.CSIDriver,
	v *volume.Volume, published bool) error {
	switch {
	case r.persistent == nil:
		return nil
	case published:
		m.restore(ctx, c, r, object)
		return nil
	}
	return m.stage(ctx, c, r, object, userOf(v))
}

// expandIfLarger grows the file system of a persistent volume. A failure is only logged and recorded as an event,
// because the pod can run without the additional space.
func (m *Manager) expandIfLarger(ctx context.Context, c *connection, p volume.Pod, r *request, target string) {
	if r.persistent == nil {
		return
	}
	if err := m.expand(ctx, c, p, r, target); err != nil {
		m.c.Logger.Warn("could not expand volume", "pod", p.Namespace+"/"+p.Name, "volume", r.name, "error", err)
		m.about(p, corev1.EventTypeWarning, "VolumeResizeFailed",
			fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %s", p.Volume, err.Error()))
	}
}

// Teardown implements volume.Plugin.
func (m *Manager) Teardown(ctx context.Context, v *volume.Volume) error {
	s, err := stateOf(v)
	if err != nil || s.Driver == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := m.connect(ctx, s.Driver)
	if err != nil {
		return err
	}
	defer c.close()
	if s.Boot != "" { // the volume no longer counts as published
		s.Boot = ""
		if err := v.Save(s); err != nil {
			return err
		}
	}
	if _, err := c.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{
		VolumeId: s.Handle, TargetPath: s.Target,
	}); err != nil {
		return fmt.Errorf("NodeUnpublishVolume: %w", err)
	}
	if err := m.c.Failpoints.At("csi.unpublished"); err != nil {
		return err
	}
	if !filepath.IsLocal(s.Dir) {
		return fmt.Errorf("invalid recorded directory %q", s.Dir)
	}
	own, _ := m.below(s.Dir)
	if err := removeEmpty(filepath.Join(own, "mount")); err != nil {
		return fmt.Errorf("the driver has unpublished the volume, but left %s: %w", s.Target, err)
	}
	if err := removeEmpty(own); err != nil {
		return err
	}
	// Remove parent directories until one has other volumes of the pod.
	for dir := filepath.Dir(own); filepath.Base(dir) != "pods" && os.Remove(dir) == nil; {
		dir = filepath.Dir(dir)
	}
	if s.Key == "" {
		return nil
	}
	return m.unstage(ctx, c, s.Key, userOf(v))
}

// removeEmpty removes a file or an empty directory, if it exists. It fails if something is mounted there.
func removeEmpty(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func stateOf(v *volume.Volume) (state, error) {
	var s state
	if v.State == nil {
		return s, nil
	}
	if err := json.Unmarshal(v.State, &s); err != nil {
		return s, fmt.Errorf("recorded state of a CSI volume: %w", err)
	}
	return s, nil
}

func userOf(v *volume.Volume) string { return string(v.UID) + "/" + v.Name }

func supports(object *storagev1.CSIDriver, r *request) error {
	switch {
	case object == nil && r.mode == storagev1.VolumeLifecyclePersistent:
		return nil
	case object == nil:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", r.mode, r.driver)
	case !slices.Contains(object.Spec.VolumeLifecycleModes, r.mode):
		return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", r.mode, r.driver,
			object.Spec.VolumeLifecycleModes)
	}
	return nil
}

// fsGroupApplies reports whether the agent gives the files to the fsGroup, by the driver's fsGroupPolicy.
func fsGroupApplies(c *connection, r *request, object *storagev1.CSIDriver) bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if object != nil && object.Spec.FSGroupPolicy != nil {
		policy = *object.Spec.FSGroupPolicy
	}
	switch {
	case r.fsGroup == nil || r.readOnly || r.block || policy == storagev1.NoneFSGroupPolicy ||
		c.can[spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case r.fsType == "":
		return false
	case r.persistent == nil:
		return true
	}
	return slices.Contains(r.persistent.Spec.AccessModes, corev1.ReadWriteOnce) ||
		slices.Contains(r.persistent.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// secrets returns the data of a Secret. what names the reference in errors.
func (m *Manager) secrets(ctx context.Context, what string, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	var s corev1.Secret
	if err := m.c.Client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, &s); err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", what, ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(s.Data))
	for key, value := range s.Data {
		out[key] = string(value)
	}
	return out, nil
}

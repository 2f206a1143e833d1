package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Plugin sets up and tears down one kind of volume. The Manager records the volume's plugin before it calls Setup. It
// calls Teardown until that succeeds once, also after a restart of the agent and after a Setup that was killed
// halfway.
type Plugin interface {
	// Name is recorded with each volume, so it must never change.
	Name() string
	// CanSupport reports whether the plugin handles volumes with this source. The first plugin that does is used.
	CanSupport(*corev1.VolumeSource) bool
	// Setup makes a volume available to the pod's containers, or updates it. It may be called repeatedly, also while
	// containers use the volume. What Teardown needs beyond the Volume's fields must be recorded with Volume.Save
	// before it is acquired.
	Setup(context.Context, Pod, *Volume) (Mounted, error)
	// Teardown releases what Setup acquired. It gets only the Volume, and succeeds if there is nothing to release. It
	// neither follows symbolic links below the Volume's directories nor detaches a mount that Setup did not make.
	Teardown(context.Context, *Volume) error
}

// Pod is the pod for which a volume is set up.
type Pod struct {
	*corev1.Pod
	Volume string // the name of the volume
	Source *corev1.VolumeSource
	// Persistent is the volume bound to the claim in Source; nil if Source has no claim.
	Persistent *Persistent
	// IP is empty while the pod has no address.
	IP string
	// memory is how many bytes of the node's tmpfs the pod's remaining volumes may take.
	memory *int64
	tokens *tokens
}

// Token returns a token of the pod's service account for an audience, which may be empty. seconds is its lifetime;
// nil means an hour. The token is cached until four fifths of its lifetime have passed.
func (p Pod) Token(ctx context.Context, audience string, seconds *int64) (authv1.TokenRequestStatus, error) {
	t, err := p.tokens.get(ctx, p.Pod, &corev1.ServiceAccountTokenProjection{
		Audience: audience, ExpirationSeconds: seconds,
	})
	return authv1.TokenRequestStatus{Token: t.text, ExpirationTimestamp: t.expires}, err
}

// Volume is a pod's volume on this node.
type Volume struct {
	UID  types.UID
	Name string
	// Dir and MemoryDir are the volume's own directories on disk and on the node's tmpfs. The parent of Dir exists.
	Dir, MemoryDir string
	// Persistent is the name of the PersistentVolume, "" for other volumes.
	Persistent string
	// State is the last saved state, nil if none was saved.
	State json.RawMessage

	save func(json.RawMessage) error
}

// Save records a value as State. The record survives a restart of the agent, and containers cannot write to it.
func (v *Volume) Save(state any) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := v.save(data); err != nil {
		return fmt.Errorf("record volume %q: %w", v.Name, err)
	}
	v.State = data
	return nil
}

// Mounted is a volume that is set up.
type Mounted struct {
	// Path on the host.
	Path string
	// Block means that Path is a block device, which containers get as a device instead of a mount.
	Block bool
	// ReadOnly means that all containers mount the volume read-only.
	ReadOnly bool
	// NoExec means that containers cannot execute its files.
	NoExec bool
	// Mapped means that the owners of its files are already mapped by the pod's user namespace. For other volumes
	// they are mapped when a container mounts the volume.
	Mapped bool
	// CreateMissing means that a missing Path is created as a directory when a container mounts it.
	CreateMissing bool
	// Refresh is when Setup should be called again to renew a token; zero means never.
	Refresh time.Time
}

func (m *Manager) pluginFor(s *corev1.VolumeSource, behind *Persistent) Plugin {
	i := slices.IndexFunc(m.plugins, func(p Plugin) bool {
		if behind == nil {
			return p.CanSupport(s)
		}
		persistent, ok := p.(PersistentPlugin)
		return ok && persistent.CanSupportPersistent(&behind.Volume.Spec.PersistentVolumeSource)
	})
	if i < 0 {
		return nil
	}
	return m.plugins[i]
}

func (m *Manager) pluginNamed(name string) (Plugin, error) {
	i := slices.IndexFunc(m.plugins, func(p Plugin) bool { return p.Name() == name })
	if i < 0 {
		return nil, fmt.Errorf("no volume plugin is named %q: run the version of Coracle that set the volume up", name)
	}
	return m.plugins[i], nil
}

func (m *Manager) volume(uid types.UID, name string, r *podRecord) *Volume {
	return &Volume{
		UID: uid, Name: name, Dir: m.volumeDir(uid, name), MemoryDir: filepath.Join(m.c.MemoryDir, string(uid), name),
		Persistent: r.persistent(name), State: r.state(name),
		save: func(data json.RawMessage) error { return r.setState(name, data) },
	}
}

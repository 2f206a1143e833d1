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

// Plugin sets up and tears down one kind of volume. The Manager records which plugin has a volume before it calls
// Setup, and calls Teardown until it succeeds once, also after a restart of the agent and for a Setup that was killed
// halfway.
type Plugin interface {
	// Name is recorded with each volume. It must never change.
	Name() string
	// CanSupport reports whether the plugin handles volumes with this source. The first plugin that does is used.
	CanSupport(*corev1.VolumeSource) bool
	// Setup makes a volume available to the pod's containers, or updates it. It may be called at any time and must not
	// disturb what is in use. What Teardown cannot tell from the Volume alone is recorded with Volume.Save before it is
	// acquired.
	Setup(context.Context, Pod, *Volume) (Mounted, error)
	// Teardown releases what Setup acquired. It knows no more than the Volume, and it succeeds if nothing is there. It
	// neither follows symbolic links below the Volume's directories nor detaches a mount that Setup did not make.
	Teardown(context.Context, *Volume) error
}

// Pod is the pod for which a volume is set up.
type Pod struct {
	*corev1.Pod
	Volume string // the name of the volume
	Source *corev1.VolumeSource
	// Persistent is the volume behind the claim that Source names; nil if it names none.
	Persistent *Persistent
	// IP may be empty while the pod has none.
	IP string
	// memory is what the pod's remaining volumes may take of the node's tmpfs, in bytes.
	memory *int64
	tokens *tokens
}

// Token returns a token of the pod's service account for an audience, which may be empty, valid for a number of
// seconds; nil is an hour. It is the same until four fifths of its lifetime are over.
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
	// Dir and MemoryDir are names for directories of the volume's own, on disk and on the node's tmpfs. The parents of Dir
	// exist.
	Dir, MemoryDir string
	// Persistent is the name of the PersistentVolume, "" for other volumes.
	Persistent string
	// State is what was saved last, nil if nothing was.
	State json.RawMessage

	save func(json.RawMessage) error
}

// Save records a value as State. Only the agent can write the record, and it survives the agent.
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
	// Block means that Path is a block device, which containers get as a device and not as a mount.
	Block bool
	// ReadOnly volumes are mounted read-only into all containers.
	ReadOnly bool
	// NoExec means that containers may not run its files.
	NoExec bool
	// Mapped means that the owners of its files are mapped with the pod's user namespace. Those of other volumes are
	// mapped where a container mounts them.
	Mapped bool
	// CreateMissing means that Path need not exist: the directory is created when a container mounts it, as container
	// runtimes do for the kubelet.
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

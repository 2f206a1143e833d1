package pod

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/agent/volume"
)

// VolumeSpace is what the volume of a claim has, in a pod that uses it.
type VolumeSpace struct {
	Pod           *corev1.Pod
	Volume, Claim string
	volume.Space
	At time.Time
}

// fullness remembers the volumes whose fullness was reported.
type fullness struct {
	spaces volume.Spaces
	mu     sync.Mutex
	full   map[fullVolume]bool
}

type fullVolume struct {
	pod  types.UID
	name string
}

// VolumeSpaces returns the space of the claims' volumes in the pods of this node that have not ended, without block volumes and without those whose
// file system does not answer.
func (m *Manager) VolumeSpaces() []VolumeSpace {
	var out []VolumeSpace
	for _, w := range m.all() {
		w.mu.Lock()
		p, held, ended := w.api.pod, w.held.volumes, w.api.gone || isTerminal(w.view())
		w.mu.Unlock()
		if held == nil || ended {
			continue
		}
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			claim, mounted := volume.ClaimOf(p, v), held.Volumes[v.Name]
			if claim == "" || mounted.Path == "" || mounted.Block {
				continue
			}
			space, err := m.fullness.spaces.Read(mounted.Path)
			if err != nil {
				m.log.Debug("could not read the space of a volume", "pod", p.Namespace+"/"+p.Name, "volume", v.Name, "error", err)
				continue
			}
			out = append(out, VolumeSpace{Pod: p, Volume: v.Name, Claim: claim, Space: space, At: time.Now()})
		}
	}
	return out
}

// LookAtVolumes records an event about each pod whose volume has become full, and when it has room again. The reasons are those of KEP-1432.
func (m *Manager) LookAtVolumes() {
	m.fullness.mu.Lock()
	defer m.fullness.mu.Unlock()
	now := map[fullVolume]bool{}
	for _, s := range m.VolumeSpaces() {
		key := fullVolume{s.Pod.UID, s.Volume}
		was := m.fullness.full[key]
		now[key] = s.Full()
		switch {
		case now[key] && !was:
			m.event(s.Pod, "", corev1.EventTypeWarning, "VolumeConditionAbnormal", fmt.Sprintf("Volume %s: the volume of claim %s is full: %s and %d inodes are free of %s and %d",
				s.Volume, s.Claim, inKiB(s.Available), s.InodesFree, inKiB(s.Capacity), s.Inodes))
		case was && !now[key]:
			m.event(s.Pod, "", corev1.EventTypeNormal, "VolumeConditionNormal", fmt.Sprintf("Volume %s: the volume of claim %s has room again: %s are free", s.Volume, s.Claim, inKiB(s.Available)))
		}
	}
	m.fullness.full = now
}

// inKiB writes a number of bytes as Kubernetes does, in whole KiB.
func inKiB(n uint64) string {
	return resource.NewQuantity(int64(n>>10<<10), resource.BinarySI).String()
} //nolint:gosec // file systems are smaller

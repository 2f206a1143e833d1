package pod

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// VolumeSpace is the usage of a claim's volume in a pod.
type VolumeSpace struct {
	Pod           *corev1.Pod
	Volume, Claim string
	volume.Space
	At time.Time
}

type fullness struct {
	spaces volume.Spaces
	mu     sync.Mutex
	full   map[fullVolume]bool
}

type fullVolume struct {
	pod  types.UID
	name string
}

// readAtOnce limits concurrent reads of volumes: one whose server does not answer takes a second.
const readAtOnce = 32

type reading struct {
	VolumeSpace
	path string
	err  error
}

// VolumeSpaces returns the space of the claims' readable volumes in pods that have not ended.
func (m *Manager) VolumeSpaces() []VolumeSpace {
	var out []VolumeSpace
	for _, r := range m.readVolumes() {
		if r.err == nil {
			out = append(out, r.VolumeSpace)
		}
	}
	return out
}

func (m *Manager) readVolumes() []reading {
	all := m.claimVolumes()
	var g errgroup.Group
	g.SetLimit(readAtOnce)
	for i := range all {
		r := &all[i]
		g.Go(func() error {
			if r.Space, r.err = m.fullness.spaces.Read(r.path); r.err != nil {
				m.log.Debug("could not read the space of a volume", "pod", r.Pod.Namespace+"/"+r.Pod.Name, "volume", r.Volume,
					"error", r.err)
			}
			r.At = time.Now()
			return nil
		})
	}
	_ = g.Wait()
	return all
}

func (m *Manager) claimVolumes() (all []reading) {
	for _, w := range m.all() {
		w.mu.Lock()
		p, held, ended := w.api.pod, w.held.volumes, w.api.gone || w.ended()
		w.mu.Unlock()
		if held == nil || ended {
			continue
		}
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if claim, mounted := volume.ClaimOf(p, v), held.Volumes[v.Name]; claim != "" && mounted.Path != "" {
				all = append(all, reading{VolumeSpace: VolumeSpace{Pod: p, Volume: v.Name, Claim: claim}, path: mounted.Path})
			}
		}
	}
	return all
}

// LookAtVolumes records an event when a volume becomes full, and when it has room again. Reasons are from KEP-1432.
func (m *Manager) LookAtVolumes() {
	for _, s := range m.fullness.changes(m.readVolumes()) {
		if s.Full() {
			m.event(s.Pod, "", corev1.EventTypeWarning, "VolumeConditionAbnormal", fmt.Sprintf(
				"Volume %s: the volume of claim %s is full: %s and %d inodes are free of %s and %d",
				s.Volume, s.Claim, inKiB(s.Available), s.InodesFree, inKiB(s.Capacity), s.Inodes))
		} else {
			m.event(s.Pod, "", corev1.EventTypeNormal, "VolumeConditionNormal", fmt.Sprintf(
				"Volume %s: the volume of claim %s has room again: %s are free", s.Volume, s.Claim, inKiB(s.Available)))
		}
	}
}

// changes returns the volumes that have become full or have room again. An unreadable volume keeps its state.
func (f *fullness) changes(all []reading) (changed []VolumeSpace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[fullVolume]bool{}
	for _, r := range all {
		key := fullVolume{r.Pod.UID, r.Volume}
		was := f.full[key]
		if now[key] = was; r.err != nil {
			continue
		}
		if now[key] = r.Full(); now[key] != was {
			changed = append(changed, r.VolumeSpace)
		}
	}
	f.full = now
	return changed
}

func inKiB(n uint64) string {
	return resource.NewQuantity(int64(n>>10<<10), resource.BinarySI).String()
} //nolint:gosec // file systems are smaller

package volume

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

// directorySizes are the sizes of this node's volumes that are directories. Quotas enforce them only on some file
// systems, and root in a container can escape those, so the agent also measures the volumes.
type directorySizes struct {
	mu    sync.Mutex
	bytes map[string]int64
	over  map[string]bool // the last measurement was above the size
}

// set records the size of a volume; 0 forgets it. A volume never shrinks: a smaller size is from an older object.
func (s *directorySizes) set(volume string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes <= 0 {
		delete(s.bytes, volume)
		delete(s.over, volume)
		return
	}
	if s.bytes == nil {
		s.bytes, s.over = map[string]int64{}, map[string]bool{}
	}
	s.bytes[volume] = max(s.bytes[volume], (bytes+blockSize-1)/blockSize*blockSize)
}

// of returns the size of a volume, 0 if it is none of the node's directories.
func (s *directorySizes) of(volume string) (bytes int64, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes[volume], s.over[volume]
}

func (d *Directories) measure(ctx context.Context, volume string) (disk.Usage, error) {
	path, err := d.path(volume)
	if err != nil {
		return disk.Usage{}, err
	}
	u, err := disk.Of(ctx, path)
	if err != nil {
		return u, err
	}
	d.sizes.mu.Lock()
	defer d.sizes.mu.Unlock()
	if size := d.sizes.bytes[volume]; size > 0 {
		d.sizes.over[volume] = u.Bytes > uint64(size)
	}
	return u, nil
}

// fits returns an error if a volume was measured above its size and still is.
func (d *Directories) fits(ctx context.Context, volume, claim string) error {
	if _, over := d.sizes.of(volume); !over {
		return nil
	}
	u, err := d.measure(ctx, volume)
	if err != nil {
		return err
	}
	size, over := d.sizes.of(volume)
	if !over {
		return nil
	}
	binary := func(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
	return fmt.Errorf("claim %q is full: %s are used of its size of %s: expand the claim, or remove files below %s "+
		"on its node", claim, binary(int64(u.Bytes)), binary(size), d.dir+"/"+volume)
}

// Claim is a claim that a pod writes to and whose volume is a directory of this node.
type Claim struct {
	Name string
	Size int64 // bytes
}

// Claims returns a pod's Claims by volume name.
func (m *Manager) Claims(p *corev1.Pod) (all map[string]Claim) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		name, readOnly := claimOf(p, v)
		if name == "" || readOnly {
			continue
		}
		r, err := m.record(p.UID)
		if err != nil {
			return nil
		}
		if size, _ := m.local.sizes.of(r.persistent(v.Name)); size > 0 {
			if all == nil {
				all = map[string]Claim{}
			}
			all[v.Name] = Claim{name, size}
		}
	}
	return all
}

// Usage walks the pod's emptyDir volumes on disk and the volumes of its Claims, and returns their usage by volume name.
func (m *Manager) Usage(ctx context.Context, p *corev1.Pod) (emptyDirs, claims map[string]disk.Usage, err error) {
	emptyDirs, claims = map[string]disk.Usage{}, map[string]disk.Usage{}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
			continue
		}
		if emptyDirs[v.Name], err = disk.Of(ctx, m.volumeDir(p.UID, v.Name)); err != nil {
			return nil, nil, err
		}
	}
	for name := range m.Claims(p) {
		r, err := m.record(p.UID)
		if err != nil {
			return nil, nil, err
		}
		if claims[name], err = m.local.measure(ctx, r.persistent(name)); err != nil {
			return nil, nil, err
		}
	}
	return emptyDirs, claims, nil
}

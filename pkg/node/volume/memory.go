package volume

import (
	"fmt"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

const (
	// maxPodObjects limits a pod's config maps, secrets and so on in bytes. The pod's cgroup is not charged for them.
	maxPodObjects = 64 << 20
	// fileCost is the memory in bytes that inodes and directory entries take per file.
	fileCost = 4096
	// All pods' objects are limited to 1/objectsShare of the allocatable memory, but at least to leastObjects bytes.
	objectsShare = 10
	leastObjects = 2 * maxPodObjects
)

var errObjects = fmt.Errorf("the pod's secrets, config maps and other objects would take more than %d MiB of the "+
	"node's memory", maxPodObjects>>20)

// memoryOf returns the memory that files take in a tmpfs with pages of this size, in bytes.
func memoryOf(files map[string]File, page int) int64 {
	sum := int64(0)
	for _, f := range files {
		sum += fileCost + int64((len(f.Data)+page-1)/page*page)
	}
	return sum
}

func memoryIn(r corev1.ResourceList) int64 {
	q := r[corev1.ResourceMemory]
	return q.Value()
}

func (m *Manager) mountMemory() error {
	_, mounted, err := mountAt(m.c.MemoryDir)
	if err != nil {
		return err
	}
	size := max(memoryIn(m.c.Allocatable())/objectsShare, leastObjects)
	options := fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", size, size/fileCost)
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if mounted {
		if err := unix.Mount("tmpfs", m.c.MemoryDir, "tmpfs", flags|unix.MS_REMOUNT, options); err != nil {
			m.c.Logger.Warn("could not bound the memory for secrets and config maps", "dir", m.c.MemoryDir, "size", size,
				"error", err)
		}
		return nil
	}
	if err := unix.Mount("tmpfs", m.c.MemoryDir, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount a tmpfs for secrets on %s: %w: run as root with CAP_SYS_ADMIN", m.c.MemoryDir, err)
	}
	return nil
}

// memorySize returns the size in bytes of a memory-backed emptyDir: the minimum of the node's allocatable memory, the
// pod's memory limit and the volume's sizeLimit. 0 means the kernel's default.
func (e emptyDir) memorySize(p *corev1.Pod, v *corev1.EmptyDirVolumeSource) int64 {
	size := memoryIn(e.allocatable())
	less := func(n int64) {
		if n > 0 && (size == 0 || n < size) {
			size = n
		}
	}
	less(memoryLimit(p))
	if v.SizeLimit != nil {
		less(v.SizeLimit.Value())
	}
	return size
}

// memoryLimit returns the pod's memory limit in bytes, or 0 if a container has none.
func memoryLimit(p *corev1.Pod) int64 {
	podLevel := p.Spec.Resources != nil && !p.Spec.Resources.Limits.Memory().IsZero()
	if !podLevel {
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if list[i].Resources.Limits.Memory().IsZero() {
					return 0
				}
			}
		}
	}
	limit := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[corev1.ResourceMemory]
	return limit.Value()
}

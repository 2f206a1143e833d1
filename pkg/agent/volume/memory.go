package volume

import (
	"fmt"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

const (
	// maxPodObjects is what the files of objects of one pod may take of the node's memory, in bytes: the kernel charges nobody for them.
	maxPodObjects = 64 << 20
	// fileCost is what a file takes beside its pages: its inode, its names, and the link to it, in bytes.
	fileCost = 4096
	// objectsShare of the node's memory is for objects of all pods, but no less than leastObjects bytes.
	objectsShare = 10
	leastObjects = 2 * maxPodObjects
)

// memoryOf is what files take of a tmpfs, in bytes.
func memoryOf(files map[string]File) int64 {
	sum := int64(0)
	for _, f := range files {
		sum += fileCost + (int64(len(f.Data))+4095)&^4095
	}
	return sum
}

func (m *Manager) allocatableMemory() int64 {
	q := m.c.Allocatable()[corev1.ResourceMemory]
	return q.Value()
}

// mountMemory mounts the node's tmpfs for objects, or gives the one that is there its size.
func (m *Manager) mountMemory() error {
	mounted, err := isMountPoint(m.c.MemoryDir)
	if err != nil {
		return err
	}
	size := max(m.allocatableMemory()/objectsShare, leastObjects)
	options := fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", size, size/fileCost)
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if mounted {
		if err := unix.Mount("tmpfs", m.c.MemoryDir, "tmpfs", flags|unix.MS_REMOUNT, options); err != nil {
			m.c.Logger.Warn("could not bound the memory for secrets and config maps", "dir", m.c.MemoryDir, "size", size, "error", err)
		}
		return nil
	}
	if err := unix.Mount("tmpfs", m.c.MemoryDir, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount a tmpfs for secrets on %s: %w: run as root with CAP_SYS_ADMIN", m.c.MemoryDir, err)
	}
	return nil
}

// memorySize is the size in bytes of an emptyDir in memory: the least of the node's allocatable memory, the pod's limit, if it has one,
// and the volume's own. 0 is the kernel's default.
func (m *Manager) memorySize(p *corev1.Pod, v *corev1.EmptyDirVolumeSource) int64 {
	size := m.allocatableMemory()
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

// memoryLimit is what a pod may take of the memory, in bytes; 0 if it, or one of its containers, has no limit.
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

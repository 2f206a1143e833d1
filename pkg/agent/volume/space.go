package volume

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// answerTime is how long a file system is waited for. One of a server that is away may never answer.
const answerTime = time.Second

// Space is what the file system of a volume has, in bytes and inodes. Of a volume with a project quota it is the quota's.
type Space struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Full reports whether less than a hundredth of the bytes or of the inodes are left. File systems without inodes of their own have 0.
func (s Space) Full() bool {
	return s.Capacity > 0 && s.Available < s.Capacity/100+1 || s.Inodes > 0 && s.InodesFree < s.Inodes/100+1
}

// Spaces reads the space of volumes. A file system that does not answer is asked again only after it has. The zero value is ready to use, and safe for
// concurrent use.
type Spaces struct {
	stat func(path string) (Space, error) // statfs, but for tests

	mu    sync.Mutex
	asked map[string]bool // by path
}

// Read returns the space of the file system at path within a second.
func (s *Spaces) Read(path string) (Space, error) {
	if !s.ask(path) {
		return Space{}, fmt.Errorf("the file system at %s does not answer", path)
	}
	stat, answer := s.stat, make(chan func() (Space, error), 1)
	if stat == nil {
		stat = statfs
	}
	go func() {
		space, err := stat(path)
		s.answered(path)
		answer <- func() (Space, error) { return space, err }
	}()
	select {
	case read := <-answer:
		return read()
	case <-time.After(answerTime):
		return Space{}, fmt.Errorf("the file system at %s has not answered for %v", path, answerTime)
	}
}

// ask reports whether a file system may be asked.
func (s *Spaces) ask(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked[path] {
		return false
	}
	if s.asked == nil {
		s.asked = map[string]bool{}
	}
	s.asked[path] = true
	return true
}

func (s *Spaces) answered(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asked, path)
}

func statfs(path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, err
	}
	size := uint64(st.Bsize) //nolint:gosec // the kernel's, above 0
	return Space{
		Capacity: st.Blocks * size, Available: st.Bavail * size, Used: (st.Blocks - st.Bfree) * size,
		Inodes: st.Files, InodesFree: st.Ffree, InodesUsed: st.Files - st.Ffree,
	}, nil
}

// ClaimOf returns the name of the claim behind a pod's volume, "" for volumes without one.
func ClaimOf(p *corev1.Pod, v *corev1.Volume) string {
	name, _ := claimOf(p, v)
	return name
}

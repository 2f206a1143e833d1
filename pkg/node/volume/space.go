package volume

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// answerTime is how long Read waits for a file system. A network file system whose server is down may never answer.
const answerTime = time.Second

// Space is the capacity and usage of a volume, in bytes and inodes. With a project quota, the quota is the capacity.
// For a block volume only Capacity is set, because only its user knows what it holds.
type Space struct {
	Block                          bool
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Full reports whether less than 1 % of bytes or inodes is left. Inodes is 0 if the number is not fixed.
func (s Space) Full() bool {
	return !s.Block && (s.Capacity > 0 && s.Available < s.Capacity/100+1 || s.Inodes > 0 && s.InodesFree < s.Inodes/100+1)
}

// Spaces reads the space of volumes. Concurrent reads of a file system share one query; no second query is sent
// before the first one returns. The zero value is ready to use and safe for concurrent use.
type Spaces struct {
	stat func(path string) (Space, error) // replaced by tests; nil is statfs

	mu    sync.Mutex
	asked map[string]*question // by path
}

// question is a query of a file system. space and err may be read once done is closed.
type question struct {
	began time.Time
	done  chan struct{}
	space Space
	err   error
}

// Read returns the space of the file system at path, or an error after answerTime.
func (s *Spaces) Read(path string) (Space, error) {
	q := s.ask(path)
	late := time.NewTimer(time.Until(q.began.Add(answerTime)))
	defer late.Stop()
	select {
	case <-q.done:
		return q.space, q.err
	case <-late.C:
		return Space{}, fmt.Errorf("the file system at %s has not answered for %v", path,
			time.Since(q.began).Round(time.Second))
	}
}

func (s *Spaces) ask(path string) *question {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.asked[path]; q != nil {
		return q
	}
	if s.asked == nil {
		s.asked = map[string]*question{}
	}
	stat, q := s.stat, &question{began: time.Now(), done: make(chan struct{})}
	if stat == nil {
		stat = statfs
	}
	s.asked[path] = q
	go func() {
		q.space, q.err = stat(path)
		s.mu.Lock()
		delete(s.asked, path)
		s.mu.Unlock()
		close(q.done)
	}()
	return q
}

func statfs(path string) (Space, error) {
	var node unix.Stat_t
	if err := unix.Stat(path, &node); err == nil && node.Mode&unix.S_IFMT == unix.S_IFBLK {
		return deviceSpace(node.Rdev)
	}
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

// deviceSpace reads the size of a block device from sysfs, without opening the device.
func deviceSpace(device uint64) (Space, error) {
	const sector = 512 // always
	text, err := bounded.File(fmt.Sprintf("/sys/dev/block/%d:%d/size", unix.Major(device), unix.Minor(device)),
		int64(unix.Getpagesize()))
	if err != nil {
		return Space{}, err
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return Space{Block: true, Capacity: sectors * sector}, err
}

// ClaimOf returns the name of a volume's claim, "" if it has none.
func ClaimOf(p *corev1.Pod, v *corev1.Volume) string {
	name, _ := claimOf(p, v)
	return name
}

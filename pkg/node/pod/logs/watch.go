package logs

import (
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// watching is the process's only watch of logs, which all followers share: root has only 128 inotify instances by
// default, and containers and the machine's services need some of them.
var watching shared //nolint:gochecknoglobals // the kernel's limit is for all of the process

// shared is an inotify instance that exists while logs are followed.
type shared struct {
	changing sync.Mutex        // held while watches are added and removed, during which the watcher may send events
	events   *fsnotify.Watcher // nil without followers

	mu    sync.Mutex
	byDir map[string]map[chan struct{}]bool // channels of capacity 1
}

// follow returns a channel that receives after files of a directory have changed, until the caller calls end.
func (s *shared) follow(dir string) (changed <-chan struct{}, end func(), err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if s.events == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, nil, err
		}
		s.events = w
		go s.run(w)
	}
	c := make(chan struct{}, 1)
	s.mu.Lock()
	if s.byDir == nil {
		s.byDir = map[string]map[chan struct{}]bool{}
	}
	if s.byDir[dir] == nil {
		s.byDir[dir] = map[chan struct{}]bool{}
	}
	s.byDir[dir][c] = true
	s.mu.Unlock()
	// Also if it is watched already: the directory may have been removed and made again.
	if err := s.events.Add(dir); err != nil {
		s.leave(dir, c)
		return nil, nil, err
	}
	return c, func() {
		s.changing.Lock()
		defer s.changing.Unlock()
		s.leave(dir, c)
	}, nil
}

// leave removes a follower. Called with changing held.
func (s *shared) leave(dir string, c chan struct{}) {
	s.mu.Lock()
	delete(s.byDir[dir], c)
	last := len(s.byDir[dir]) == 0
	if last {
		delete(s.byDir, dir)
	}
	none := len(s.byDir) == 0
	s.mu.Unlock()
	if last {
		_ = s.events.Remove(dir) // fails if the directory is gone
	}
	if none {
		_ = s.events.Close()
		s.events = nil
	}
}

func (s *shared) run(events *fsnotify.Watcher) {
	for {
		select {
		case e, open := <-events.Events:
			if !open {
				return
			}
			s.notify(filepath.Dir(e.Name))
		case _, open := <-events.Errors: // events were lost
			if !open {
				return
			}
			s.notify("")
		}
	}
}

// notify wakes the followers of a directory; of all directories if it is "".
func (s *shared) notify(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wake := func(followers map[chan struct{}]bool) {
		for c := range followers {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	if dir != "" {
		wake(s.byDir[dir])
		return
	}
	for _, followers := range s.byDir {
		wake(followers)
	}
}

// Package tasklogs keeps the logs of tasks' attempts on their node after the pods are gone, until the task is deleted
// or the bounds are exceeded. Its invariant: a log is either in its pod's directory or here, even if the process is
// killed, because one rename moves it. The archive is bounded by number and size; it removes the oldest logs first.
package tasklogs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The default bounds of an Archive.
const (
	DefaultCount = 10_000
	DefaultBytes = 1 << 30
)

// Archive is a directory of logs: DIR/TASK/POD_NAME is the former directory of the pod's logs, where TASK and POD are
// UIDs. It is read when the first log is kept, so it costs nothing on nodes without tasks.
type Archive struct {
	dir   string
	count int
	bytes int64

	mu    sync.Mutex
	read  bool
	kept  []entry // oldest first
	total int64
}

type entry struct {
	task, dir string
	at        time.Time
	bytes     int64
}

// New returns the archive in dir, which must be on the same file system as the logs. It keeps at most count attempts
// and that many bytes; 0 means the defaults.
func New(dir string, count int, bytes int64) *Archive {
	if count == 0 {
		count = DefaultCount
	}
	if bytes == 0 {
		bytes = DefaultBytes
	}
	return &Archive{dir: dir, count: count, bytes: bytes}
}

// uid matches the UIDs in directory names. An owner reference may contain anything.
var uid = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}$`)

// named matches the pod names that become part of a directory name. Other names are left out.
var named = regexp.MustCompile(`^[0-9a-z][0-9a-z.-]{0,127}$`)

func (a *Archive) path(task, pod, name string) (string, error) {
	if !uid.MatchString(task) || !uid.MatchString(pod) {
		return "", fmt.Errorf("%q and %q are not both UIDs", task, pod)
	}
	if named.MatchString(name) {
		pod += "_" + name
	}
	return filepath.Join(a.dir, task, pod), nil
}

// Keep moves the directory of a pod's logs into the archive. It does nothing if the directory does not exist, such as
// after an earlier move.
func (a *Archive) Keep(logs, task, pod, name string) error {
	to, err := a.path(task, pod, name)
	if err != nil {
		return err
	}
	size, err := sizeOf(logs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.load()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Rename(logs, to); err != nil {
		return err
	}
	a.add(entry{task: task, dir: filepath.Base(to), at: time.Now(), bytes: size})
	for len(a.kept) > a.count || a.total > a.bytes && len(a.kept) > 1 {
		a.drop(0)
	}
	return nil
}

// Find returns the path of the log of a container's newest instance, or fs.ErrNotExist.
func (a *Archive) Find(task, pod, name, container string) (string, error) {
	dir, err := a.path(task, pod, name)
	if err != nil {
		return "", err
	}
	found, err := newest(dir, container)
	if errors.Is(err, fs.ErrNotExist) { // an agent of an earlier version kept it
		return newest(filepath.Join(a.dir, task, pod), container)
	}
	return found, err
}

// FindNamed is Find for a pod whose UID is not known. If the name ends with "*", it finds the pod with the greatest
// number in the place of the star.
func (a *Archive) FindNamed(task, name, container string) (string, error) {
	if !uid.MatchString(task) {
		return "", fmt.Errorf("%q is not a UID", task)
	}
	pods, err := os.ReadDir(filepath.Join(a.dir, task))
	if err != nil {
		return "", err
	}
	prefix, numbered := strings.CutSuffix(name, "*")
	best, most := "", -1
	for _, p := range pods {
		_, has, ok := strings.Cut(p.Name(), "_")
		if !ok { // an agent of an earlier version kept it
			continue
		}
		rest, ok := strings.CutPrefix(has, prefix)
		number := 0
		if numbered && ok {
			n, err := strconv.ParseUint(rest, 10, 31)
			number, rest, ok = int(n), "", err == nil
		}
		if ok && rest == "" && number > most {
			best, most = p.Name(), number
		}
	}
	if best == "" {
		return "", fs.ErrNotExist
	}
	return newest(filepath.Join(a.dir, task, best), container)
}

// newest returns the log of a container's newest instance in a pod's directory.
func newest(dir, container string) (string, error) {
	found, err := os.ReadDir(filepath.Join(dir, filepath.Base(container)))
	if err != nil {
		return "", err
	}
	last := ""
	for _, d := range found { // ATTEMPT.log, and rotated logs
		if name := d.Name(); filepath.Ext(name) == ".log" &&
			cmp.Or(cmp.Compare(len(name), len(last)), cmp.Compare(name, last)) > 0 {
			last = name
		}
	}
	if last == "" {
		return "", fs.ErrNotExist
	}
	return filepath.Join(dir, filepath.Base(container), last), nil
}

// Forget removes the logs of a task.
func (a *Archive) Forget(task string) error {
	if !uid.MatchString(task) {
		return fmt.Errorf("%q is not a UID", task)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = slices.DeleteFunc(a.kept, func(e entry) bool {
		if e.task == task {
			a.total -= e.bytes
		}
		return e.task == task
	})
	return os.RemoveAll(filepath.Join(a.dir, task))
}

func (a *Archive) add(e entry) {
	a.kept = append(a.kept, e)
	a.total += e.bytes
}

func (a *Archive) drop(i int) {
	e := a.kept[i]
	_ = os.RemoveAll(filepath.Join(a.dir, e.task, e.dir))
	_ = os.Remove(filepath.Join(a.dir, e.task)) // only if it is empty
	a.total -= e.bytes
	a.kept = slices.Delete(a.kept, i, i+1)
}

// load reads the logs that an earlier process has kept.
func (a *Archive) load() {
	if a.read {
		return
	}
	a.read = true
	of, _ := os.ReadDir(a.dir)
	for _, t := range of {
		pods, _ := os.ReadDir(filepath.Join(a.dir, t.Name()))
		for _, p := range pods {
			info, err := p.Info()
			size, err2 := sizeOf(filepath.Join(a.dir, t.Name(), p.Name()))
			if errors.Join(err, err2) == nil {
				a.add(entry{task: t.Name(), dir: p.Name(), at: info.ModTime(), bytes: size})
			}
		}
	}
	slices.SortFunc(a.kept, func(x, y entry) int { return x.at.Compare(y.at) })
}

func sizeOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

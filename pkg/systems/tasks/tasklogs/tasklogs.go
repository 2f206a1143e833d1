// Package tasklogs keeps the logs of tasks' attempts on their node after the pods are gone, until the task is deleted
// or the bounds are exceeded. Its invariant: a log is either in its pod's directory or here, even if the process is
// killed, because one rename moves it. The archive is bounded by number and size. Beyond a bound it removes the oldest
// log of the namespace that uses most of it, so a namespace cannot displace the logs of one that uses less.
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

// Archive is a directory of logs: DIR/NAMESPACE_TASK/POD_NAME is the former directory of the pod's logs, where TASK and
// POD are UIDs. Agents of earlier versions left out the namespace. It is read when the first log is kept, so it costs
// nothing on nodes without tasks.
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
	task, dir string // names of directories
	at        time.Time
	bytes     int64
}

// New returns the archive in dir, which must be on the same file system as the logs. It keeps at most count attempts
// and that many bytes; 0 means the defaults.
func New(dir string, count int, bytes int64) *Archive {
	count = cmp.Or(count, DefaultCount)
	bytes = cmp.Or(bytes, DefaultBytes)
	return &Archive{dir: dir, count: count, bytes: bytes}
}

// uid matches the UIDs in directory names. An owner reference may contain anything.
var uid = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}$`)

// named matches the pod names that become part of a directory name. Other names are left out.
var named = regexp.MustCompile(`^[0-9a-z][0-9a-z.-]{0,127}$`)

// Task identifies a task. An attempt's owner reference may name a task of another namespace, so its UID is not enough.
type Task struct{ Namespace, UID string }

func (t Task) dir() (string, error) {
	if !uid.MatchString(t.UID) || !named.MatchString(t.Namespace) {
		return "", fmt.Errorf("%q is not a UID, or %q is not a namespace", t.UID, t.Namespace)
	}
	return t.Namespace + "_" + t.UID, nil
}

func (a *Archive) path(task Task, pod, name string) (string, error) {
	dir, err := task.dir()
	if err != nil {
		return "", err
	}
	if !uid.MatchString(pod) {
		return "", fmt.Errorf("%q is not a UID", pod)
	}
	if named.MatchString(name) {
		pod += "_" + name
	}
	return filepath.Join(a.dir, dir, pod), nil
}

// Keep moves the directory of a pod's logs into the archive. It does nothing if the directory does not exist, such as
// after an earlier move.
func (a *Archive) Keep(logs string, task Task, pod, name string) error {
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
	a.add(entry{task: filepath.Base(filepath.Dir(to)), dir: filepath.Base(to), at: time.Now(), bytes: size})
	for len(a.kept) > a.count {
		a.drop(a.oldest(func(entry) int64 { return 1 }))
	}
	for a.total > a.bytes && len(a.kept) > 1 {
		a.drop(a.oldest(func(e entry) int64 { return e.bytes }))
	}
	return nil
}

// oldest returns the oldest entry of the namespace whose entries have the greatest sum.
func (a *Archive) oldest(of func(entry) int64) int {
	sums, most := map[string]int64{}, ""
	for _, e := range a.kept {
		if sums[e.namespace()] += of(e); sums[e.namespace()] > sums[most] {
			most = e.namespace()
		}
	}
	return slices.IndexFunc(a.kept, func(e entry) bool { return e.namespace() == most })
}

func (e entry) namespace() string {
	namespace, _, _ := strings.Cut(e.task, "_")
	return namespace
}

// Dir returns the directory of a pod's logs in the archive, or fs.ErrNotExist.
func (a *Archive) Dir(task Task, pod, name string) (string, error) {
	dir, err := a.path(task, pod, name)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{
		dir, filepath.Join(a.dir, task.UID, filepath.Base(dir)), filepath.Join(a.dir, task.UID, pod),
	} {
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
	return "", fs.ErrNotExist
}

// DirNamed is Dir for a pod whose UID is not known. If the name ends with "*", it finds the pod with the greatest
// number in the place of the star.
func (a *Archive) DirNamed(task Task, name string) (string, error) {
	at, err := task.dir()
	if err != nil {
		return "", err
	}
	pods, err := os.ReadDir(filepath.Join(a.dir, at))
	if errors.Is(err, fs.ErrNotExist) {
		at = task.UID
		pods, err = os.ReadDir(filepath.Join(a.dir, at))
	}
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
	return filepath.Join(a.dir, at, best), nil
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
func (a *Archive) Forget(task Task) error {
	dir, err := task.dir()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = slices.DeleteFunc(a.kept, func(e entry) bool {
		gone := e.task == dir || e.task == task.UID
		if gone {
			a.total -= e.bytes
		}
		return gone
	})
	return errors.Join(os.RemoveAll(filepath.Join(a.dir, dir)), os.RemoveAll(filepath.Join(a.dir, task.UID)))
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

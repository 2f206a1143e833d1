package static

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// maxFiles limits the manifests that are read, and is not less than the maximum of a node's max-pods. maxEntries
	// limits the folder's entries of any kind; a larger folder is not read.
	maxFiles   = 1000
	maxEntries = 4 * maxFiles
	// maxManifest is in bytes. etcd's limit for an object, and so for the mirror, is 1.5 MiB.
	maxManifest = 1 << 20
)

// folder is a folder of manifests. It is not safe for concurrent use.
type folder struct {
	dir    string
	load   func(path string) ([]byte, error)
	decode func(file string, data []byte) (*corev1.Pod, error)
	watch  *watch

	files    map[string]*manifest            // by name
	known    bool                            // the folder was read
	reported map[string]string               // the last refusals, by path
	from     map[types.NamespacedName]string // the file of each pod; initially from an earlier process
	// failed: the folder could not be read, and no event will tell when it can. unread: likewise one of the files.
	failed, unread bool
	// all: the next read reads every file.
	all bool
	// again is how many more times to read, without an event, files that were open for writing.
	again int
	// renamed holds the files that were renamed to their backup names.
	renamed map[string]bool
}

func newFolder(dir string, decode func(string, []byte) (*corev1.Pod, error)) folder {
	return folder{
		dir:     dir,
		load:    readManifest,
		decode:  decode,
		files:   map[string]*manifest{},
		from:    map[types.NamespacedName]string{},
		renamed: map[string]bool{},
	}
}

// manifest is the state of a file in the folder.
type manifest struct {
	pod  *corev1.Pod // from the last read without an error; nil if none
	err  error       // of the last read
	open bool        // not read yet, because it is open for writing
	fail bool        // reading failed with a system error, which may end without an event
	link bool        // a symlink; inotify does not report changes to its target
	at   []string    // of a link: the subfolders that it leads through
}

// unusable reports whether this process has never read and parsed the file. Pods of earlier processes keep running.
func (m *manifest) unusable() bool {
	return m.pod == nil && (m.open || m.err != nil && !errors.Is(m.err, errNotFile) && !errors.Is(m.err, errNowhere))
}

// source is the origin of a pod. pod is nil if the file is unusable now; a running pod of that file is kept.
type source struct {
	pod  *corev1.Pod
	file string
}

type refusal struct {
	file string
	err  error
}

var (
	errNotFile = errors.New("not a file: subfolders, sockets, devices and FIFOs are not read")
	errNowhere = errors.New("the symbolic link leads to no file")
	errWritten = errors.New("a process has the file open for writing")
	errCircle  = errors.New("too many symbolic links: they form a loop, or more than 16 follow each other")
	errOutside = errors.New("the symbolic link leads outside of this folder, where no change is seen: copy the file")
)

// read reads changed files. It returns the pods of all files and the new refusals, or false if the folder has never
// been readable. A file with refused content keeps its previous pod, also an earlier process's; a removed file loses
// it. A pod in several files stays with the file that had it, or else goes to the first by name.
func (f *folder) read() (map[types.NamespacedName]source, []refusal, bool) {
	wrong := map[string]error{}
	names, err := f.names()
	if err != nil {
		wrong[f.dir] = err
	}
	f.failed = err != nil && !errors.Is(err, errMany) && !errors.Is(err, errEntries)
	if err != nil && !errors.Is(err, errMany) {
		if !f.known {
			return nil, f.news(wrong), false
		}
		names = slices.Sorted(maps.Keys(f.files)) // keep the known files
	}
	changed, lost := f.watch.take()
	names, away := f.leaveBackups(names, changed, lost)
	all := lost || f.all
	f.all = false
	maps.DeleteFunc(f.files, func(name string, _ *manifest) bool {
		_, there := slices.BinarySearch(names, name)
		return !there
	})
	f.unread = false
	for _, name := range names {
		file := f.files[name]
		if !away[name] && (file == nil || all || changed[name] != 0 || file.link || file.open || file.fail) {
			if f.readFile(name) && !all {
				f.again = rereads
			}
		}
		if file = f.files[name]; file != nil && file.fail {
			f.unread = true
		}
	}
	targets := map[string]bool{}
	for _, file := range f.files {
		for _, dir := range file.at {
			targets[dir] = true
		}
	}
	f.watch.keep(targets)
	f.known = true
	pods := f.choose(names, wrong)
	return pods, f.news(wrong), true
}

// choose returns the pods of the files, and adds the errors of files to wrong.
func (f *folder) choose(names []string, wrong map[string]error) map[types.NamespacedName]source {
	pods := map[types.NamespacedName]source{}
	goesOn := map[string]bool{}
	for key, name := range f.from {
		if file := f.files[name]; file != nil && file.unusable() {
			pods[key], goesOn[name] = source{file: name}, true
		}
	}
	for name, file := range f.files {
		switch path := filepath.Join(f.dir, name); {
		case file.err == nil:
		case file.pod != nil || goesOn[name]:
			wrong[path] = fmt.Errorf("%w; the pod of its previous content keeps running", file.err)
		default:
			wrong[path] = file.err
		}
	}
	for _, before := range []bool{true, false} {
		for _, name := range names {
			file := f.files[name]
			if file == nil || file.pod == nil {
				continue
			}
			key := nameOf(file.pod)
			if (f.from[key] == name) != before {
				continue
			}
			if other, has := pods[key]; has {
				wrong[filepath.Join(f.dir, name)] = fmt.Errorf("%s defines the same pod %s: remove one of the files",
					filepath.Join(f.dir, other.file), key)
				continue
			}
			pods[key] = source{file.pod, name}
		}
	}
	f.from = map[types.NamespacedName]string{}
	for key, s := range pods {
		f.from[key] = s.file
	}
	return pods
}

func (f *folder) news(wrong map[string]error) (out []refusal) {
	reported := map[string]string{}
	for path, err := range wrong {
		reported[path] = err.Error()
		if f.reported[path] != reported[path] {
			out = append(out, refusal{path, err})
		}
	}
	f.reported = reported
	slices.SortFunc(out, func(a, b refusal) int { return strings.Compare(a.file, b.file) })
	return out
}

var (
	errMany    = fmt.Errorf("more than %d manifests: the remaining ones are ignored", maxFiles)
	errEntries = fmt.Errorf("more than %d entries: the folder is not read until there are fewer", maxEntries)
)

func (f *folder) names() ([]string, error) {
	dir, err := os.Open(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	all, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(all) > maxEntries {
		return nil, errEntries
	}
	names := slices.DeleteFunc(all, func(name string) bool { return strings.HasPrefix(name, ".") })
	slices.Sort(names)
	if len(names) > maxFiles {
		return names[:maxFiles], errMany
	}
	return names, nil
}

// readFile reads one file of any type, without blocking. It returns true if the file is open for writing and not used.
func (f *folder) readFile(name string) (written bool) {
	path := filepath.Join(f.dir, name)
	info, err := os.Lstat(path)
	link := err == nil && info.Mode()&fs.ModeSymlink != 0
	var data []byte
	var at []string
	if link {
		at, err = f.resolve(path)
	}
	if err == nil {
		data, err = f.load(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if link {
			f.files[name] = &manifest{err: errNowhere, link: true, at: at}
			return false
		}
		return false // removed since the folder was listed: an event follows
	}
	if errors.Is(err, errWritten) {
		file := f.files[name]
		if file == nil {
			file = &manifest{open: true}
			f.files[name] = file
		}
		file.link, file.at = link, at
		return true
	}
	if errors.Is(err, errNotFile) {
		f.files[name] = &manifest{err: err, link: link, at: at}
		return false
	}
	file := f.files[name]
	if file == nil {
		file = &manifest{}
		f.files[name] = file
	}
	file.link, file.at, file.open, file.fail = link, at, false, errors.As(err, new(unix.Errno))
	var p *corev1.Pod
	if err == nil {
		p, err = f.decode(path, data)
	}
	if err == nil {
		file.pod = p
	}
	file.err = err
	return false
}

const maxLinks = 16

// resolve watches and returns the subfolders that a link leads through, before their files are read. It fails if the
// link leads out of the folder, to nothing, or in a circle.
func (f *folder) resolve(path string) (at []string, err error) {
	root, err := filepath.EvalSymlinks(f.dir)
	if err != nil {
		return nil, err
	}
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		switch {
		case err != nil:
			return at, err
		case dir != root && !strings.HasPrefix(dir, root+"/"):
			return at, errOutside
		case dir != root:
			at = append(at, dir)
			if err := f.watch.also(dir); err != nil {
				return at, err
			}
		}
		path = filepath.Join(dir, filepath.Base(path))
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return at, err
		}
		to, err := os.Readlink(path)
		if err != nil {
			return at, err
		}
		if path = to; !filepath.IsAbs(to) {
			path = filepath.Join(dir, to)
		}
	}
	return at, errCircle
}

func readManifest(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotFile
	}
	if written(file) {
		return nil, errWritten
	}
	return bounded.All(file, maxManifest)
}

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
	// maxFiles is how many manifests are read; the node's max-pods is at most that. maxEntries are the folder's entries of
	// any kind.
	maxFiles   = 1000
	maxEntries = 4 * maxFiles
	// maxManifest is in bytes; etcd's limit for an object, and so for the mirror, is 1.5 MiB.
	maxManifest = 1 << 20
)

// folder is a folder of manifests. Only its reader uses it.
type folder struct {
	dir    string
	load   func(path string) ([]byte, error)
	decode func(file string, data []byte) (*corev1.Pod, error)
	watch  *watch

	files    map[string]*manifest            // by name
	known    bool                            // the folder was read
	reported map[string]string               // the last refusals, by path
	from     map[types.NamespacedName]string // which file each pod is of, at first as an earlier process had it
	// failed: the folder could not be read, and no event says when it can; unread: one of the files could not.
	failed, unread bool
	// all: every file is read once more.
	all bool
	// again is how often to read once more, without an event, what was being written when its event came.
	again int
	// renamed are the files that were renamed to be their backups.
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

// manifest is a file that was read.
type manifest struct {
	pod  *corev1.Pod // as last read without an error; nil if there is none
	err  error       // of the last reading
	open bool        // nothing was read yet, because it was being written
	fail bool        // the system could not read it, which may pass without an event
	link bool        // a change of what it leads to is no event of it
	at   []string    // of a link: the folders in which there is what it leads to
}

// unusable reports whether nothing is known of what the file says. A pod that is of it goes on.
func (m *manifest) unusable() bool {
	return m.pod == nil && (m.open || m.err != nil && !errors.Is(m.err, errNotFile) && !errors.Is(m.err, errNowhere))
}

// source is where a pod is from. The pod is nil if the file cannot be used now, and what runs of it goes on.
type source struct {
	pod  *corev1.Pod
	file string
}

// refusal is why a file is not used, or not in its present form.
type refusal struct {
	file string
	err  error
}

var (
	errNotFile = errors.New("it is not a file: only files are read, not folders below this one, sockets, devices or FIFOs")
	errNowhere = errors.New("the link leads to no file")
	errWritten = errors.New("it is being written")
	errCircle  = errors.New("too many links: they lead in a circle, or more than 16 follow each other")
	errOutside = errors.New("it is a link to a file outside of this folder, where changes are not seen: copy the file")
)

// read reads the files that changed. It returns the pods of all files, and what is newly refused; false if the folder
// was never read yet, and cannot be. A file whose content is refused keeps the pod that it had before, also in an
// earlier process; without the file there is no pod. If several files have the same pod, it stays with the file that
// had it before, else it is the first by name.
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
		names = slices.Sorted(maps.Keys(f.files)) // those that are known go on
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

// choose returns the pods of the files, and adds to wrong what is wrong with files.
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
			wrong[path] = fmt.Errorf("%w; the pod of its former content goes on", file.err)
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
				wrong[filepath.Join(f.dir, name)] = fmt.Errorf("%s has the same pod %s: remove one of them",
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

// news returns those refusals that were not reported before.
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
	errMany    = fmt.Errorf("there are more than %d manifests: the others are not used", maxFiles)
	errEntries = fmt.Errorf("it has more than %d entries: it is not read any more", maxEntries)
)

// names returns the names of the manifests, sorted.
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

// readFile reads a file, whatever it is: a link that leads nowhere or in a circle, or something that would block. It
// returns true if the file is not used yet, because it is being written.
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
		return false // removed since the folder was read: the event follows
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

// maxLinks is how many links may lead from one to the next.
const maxLinks = 16

// resolve watches the folders below through which a link leads, before anything of them is read, and returns them. It
// fails if the link leads out of the folder, to nothing, or in a circle.
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

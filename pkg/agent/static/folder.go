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

	"github.com/coracle-dev/coracle/pkg/bounded"
)

const (
	// maxFiles is how many manifests are read; the node's max-pods is at most that. maxEntries are the folder's entries of any kind.
	maxFiles   = 1000
	maxEntries = 4 * maxFiles
	// maxManifest is in bytes; etcd's limit for an object, and so for the mirror, is 1.5 MiB.
	maxManifest = 1 << 20
)

// folder is a folder of manifests. Only its reader uses it.
type folder struct {
	dir    string
	decode func(file string, data []byte) (*corev1.Pod, error)
	watch  *watch

	files map[string]*manifest            // by name
	told  map[string]string               // what was last refused, by path
	from  map[types.NamespacedName]string // which file each pod is of; nil until the folder was read
	// failed: the folder could not be read, and no event says when it can.
	failed bool
}

// manifest is a file that was read.
type manifest struct {
	pod  *corev1.Pod // as last read without an error; nil if there is none
	err  error       // of the last reading
	link bool        // a change of what it leads to is no event of it
}

// refusal is why a file is not used, or not in its present form.
type refusal struct {
	file string
	err  error
}

var (
	errNotFile = errors.New("it is not a file: only files are read, not folders below this one, sockets, devices or FIFOs")
	errWritten = errors.New("it is being written")
	errOutside = errors.New("it is a link to a file outside of this folder, where changes are not seen: copy the file")
)

// read reads the files that changed. It returns the pods of all files, and what is newly refused. A file whose content is refused keeps the pod
// that it had before; without the file there is no pod. It returns false if the folder was never read yet, and cannot be. Of several files with one pod that has it which had it before, in an earlier process that whose pod runs, or else the first by name.
func (f *folder) read(runs func(types.UID) bool) (map[types.NamespacedName]*corev1.Pod, []refusal, bool) {
	wrong := map[string]error{}
	names, err := f.names()
	if err != nil {
		wrong[f.dir] = err
	}
	f.failed = err != nil && !errors.Is(err, errMany) && !errors.Is(err, errEntries)
	if err != nil && !errors.Is(err, errMany) {
		if f.from == nil {
			return nil, f.news(wrong), false
		}
		names = slices.Sorted(maps.Keys(f.files)) // those that are known go on
	}
	maps.DeleteFunc(f.files, func(name string, _ *manifest) bool {
		_, there := slices.BinarySearch(names, name)
		return !there
	})
	changed, all := f.watch.take()
	for _, name := range names {
		if f.files[name] == nil || all || changed[name] || f.files[name].link {
			f.readFile(name)
		}
	}
	pods := f.choose(names, runs, wrong)
	return pods, f.news(wrong), true
}

// choose returns the pods of the files, and adds to wrong what is wrong with files.
func (f *folder) choose(names []string, runs func(types.UID) bool, wrong map[string]error) map[types.NamespacedName]*corev1.Pod {
	pods, from := map[types.NamespacedName]*corev1.Pod{}, map[types.NamespacedName]string{}
	first := func(p *corev1.Pod, path string) bool {
		if before := f.from[nameOf(p)]; before != "" {
			return before == path
		}
		return runs(p.UID)
	}
	for _, round := range []bool{true, false} {
		for _, name := range names {
			file, path := f.files[name], filepath.Join(f.dir, name)
			if file == nil {
				continue
			}
			if file.err != nil {
				wrong[path] = file.err
			}
			if file.pod == nil || first(file.pod, path) != round {
				continue
			}
			key := nameOf(file.pod)
			if other := from[key]; other != "" {
				wrong[path] = fmt.Errorf("%s has the same pod %s: remove one of them", other, key)
				continue
			}
			pods[key], from[key] = file.pod, path
		}
	}
	f.from = from
	return pods
}

// news returns those refusals that were not reported before.
func (f *folder) news(wrong map[string]error) (out []refusal) {
	told := map[string]string{}
	for path, err := range wrong {
		told[path] = err.Error()
		if f.told[path] != told[path] {
			out = append(out, refusal{path, err})
		}
	}
	f.told = told
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

// readFile reads a file, whatever it is: a link that leads nowhere or in a circle, or something that would block.
func (f *folder) readFile(name string) {
	path := filepath.Join(f.dir, name)
	info, err := os.Lstat(path)
	link := err == nil && info.Mode()&fs.ModeSymlink != 0
	var data []byte
	if link {
		err = f.within(path)
	}
	if err == nil {
		data, err = readManifest(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if link {
			f.files[name] = &manifest{err: errors.New("the link leads to no file"), link: true}
			return
		}
		delete(f.files, name)
		return
	}
	if errors.Is(err, errWritten) {
		return
	}
	if errors.Is(err, errNotFile) {
		f.files[name] = &manifest{err: err, link: link}
		return
	}
	file := f.files[name]
	if file == nil {
		file = &manifest{}
		f.files[name] = file
	}
	file.link = link
	var p *corev1.Pod
	if err == nil {
		p, err = f.decode(path, data)
	}
	if err == nil {
		file.pod = p
	} else if file.pod != nil {
		err = fmt.Errorf("%w; the pod of its former content goes on", err)
	}
	file.err = err
}

// within fails if a link leads out of the folder.
func (f *folder) within(path string) error {
	dir, err := filepath.EvalSymlinks(f.dir)
	if err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks(path)
	if err == nil && !strings.HasPrefix(target, dir+"/") {
		err = errOutside
	}
	return err
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

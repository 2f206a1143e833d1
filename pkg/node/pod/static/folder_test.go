package static

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestWhatIsInTheFolder checks that each manifest is a pod, and that an invalid one is refused once, alone.
func TestWhatIsInTheFolder(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.MkdirAll(r.dir, 0o700))
	at := func(name string) string { return filepath.Join(r.dir, name) }
	r.write("a.yaml", manifestOf("a", "one"))
	r.write("b.json",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"kube-system"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	r.write(".hidden.yaml", manifestOf("hidden", "one"))
	r.write("broken.yaml", "kind: [")
	r.write("unknown.yaml", strings.Replace(manifestOf("unknown", "one"), "image:", "imgae:", 1))
	r.write("nameless.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: i}]}\n")
	r.write("z-again.yaml", manifestOf("a", "two"))
	r.write("huge.yaml", manifestOf("huge", "one")+"# "+strings.Repeat("x", maxManifest))
	r.write("owned.yaml", strings.Replace(manifestOf("owned", "one"), "{name: owned}", "{name: owned, uid: x}", 1))
	r.write("elsewhere.yaml", strings.Replace(manifestOf("elsewhere", "one"), "spec:", "spec:\n  nodeName: other", 1))
	require.NoError(t, os.Symlink(at("loop-b"), at("loop-a")))
	require.NoError(t, os.Symlink(at("loop-a"), at("loop-b")))
	require.NoError(t, os.Symlink(at("nowhere"), at("dangling")))
	require.NoError(t,
		os.WriteFile(filepath.Join(filepath.Dir(r.dir), "elsewhere"), []byte(manifestOf("linked", "one")), 0o600))
	require.NoError(t, os.Symlink("../elsewhere", at("outside.yaml")))
	require.NoError(t, os.Mkdir(at("..one"), 0o700))
	r.write("..one/linked", manifestOf("linked", "one"))
	require.NoError(t, os.Symlink("..one", at("..data")))
	require.NoError(t, os.Symlink("..data/linked", at("linked.yaml")))
	r.write("empty.yaml", "")
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	require.NoError(t, os.Mkdir(at("folder"), 0o700))
	r.start()
	names := []string{}
	for _, p := range r.all() {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	require.ElementsMatch(t, []string{"default/a-node", "kube-system/b-node", "default/linked-node"}, names)
	require.Equal(t, "one", r.pod("a-node").Spec.Containers[0].Image, "the first file by name has the pod")
	refused := map[string]string{}
	for _, e := range r.said() {
		file, why, _ := strings.Cut(strings.TrimPrefix(e, "InvalidStaticPod: "+r.dir+"/"), ": ")
		require.Empty(t, refused[file], "once")
		refused[file] = why
	}
	for file, why := range map[string]string{
		"broken.yaml": "yaml", "unknown.yaml": "imgae", "nameless.yaml": "metadata.name",
		"z-again.yaml": "a.yaml defines the same pod", "huge.yaml": "1048576",
		"owned.yaml": "metadata.uid is set: remove it", "elsewhere.yaml": "this node is node",
		"loop-a": "too many symbolic links", "loop-b": "too many symbolic links",
		"dangling": "no file", "outside.yaml": "outside of this folder", "empty.yaml": "metadata.name", "fifo": "not a file",
		"folder": "not a file",
	} {
		require.Contains(t, refused[file], why, file)
		delete(refused, file)
	}
	require.Empty(t, refused)

	require.NoError(t, os.Remove(at("a.yaml")))
	r.until("the pod of the removed file is stopped", func() bool { return r.stopped[r.named("a-node").UID] })
	r.ends(r.pod("a-node").UID)
	r.until("the other file has the pod now", func() bool {
		p := r.named("a-node")
		return p != nil && p.Spec.Containers[0].Image == "two"
	})
}

func TestCopies(t *testing.T) {
	r := newRig(t)
	stop := r.start()
	r.write("web.yaml", manifestOf("web", "one"))
	r.until("it runs", func() bool { return r.named("web-node") != nil })
	uid := r.pod("web-node").UID
	r.write("a-copy.yaml", manifestOf("web", "one"))
	r.until("the copy is refused", func() bool {
		return strings.Contains(strings.Join(r.events, "\n"), "a-copy.yaml: "+r.dir+"/web.yaml defines the same pod")
	})
	require.Empty(t, r.stops())
	r.write("web.yaml", manifestOf("web", "two"))
	r.until("the file is changed", func() bool { return r.stopped[uid] })
	r.ends(uid)
	r.until("its pod runs, not the copy's", func() bool {
		p := r.named("web-node")
		return p != nil && p.Spec.Containers[0].Image == "two"
	})
	uid = r.pod("web-node").UID
	stop()
	r.nextProcess()
	require.Empty(t, r.stops())
	require.NoError(t, os.Remove(filepath.Join(r.dir, "web.yaml")))
	r.until("the copy has the pod when the file is gone", func() bool { return r.stopped[uid] })
	r.ends(uid)
	r.until("it runs", func() bool { p := r.named("web-node"); return p != nil && p.UID != uid })
}

func TestTooManyFiles(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.MkdirAll(r.dir, 0o700))
	for i := range maxFiles + 2 {
		r.write(fmt.Sprintf("%04d.yaml", i), manifestOf(fmt.Sprint("p", i), "one"))
	}
	r.start()
	require.Len(t, r.all(), maxFiles)
	require.Contains(t, strings.Join(r.said(), "\n"), "more than 1000 manifests")
	require.NoError(t, os.Remove(filepath.Join(r.dir, "0000.yaml")))
	r.until("the next one is used", func() bool { return r.named(fmt.Sprintf("p%d-node", maxFiles)) != nil })
	for i := range maxEntries {
		r.write(fmt.Sprint(".", i), "")
	}
	r.until("it is said", func() bool { return strings.Contains(strings.Join(r.events, "\n"), "more than 4000 entries") })
	require.Len(t, r.stops(), 1, "the pods that run go on")
}

func TestFolderThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.WriteFile(r.dir, nil, 0o600)) // a file takes the folder's place
	r.left["left"] = Left{Name: types.NamespacedName{Namespace: "default", Name: "a-node"}, File: "a.yaml"}
	r.start()
	require.Contains(t, strings.Join(r.said(), "\n"), r.dir)
	require.Empty(t, r.stops())
	require.NoError(t, os.Remove(r.dir))
	r.until("its manifest is gone", func() bool { return r.stopped["left"] })
	require.NoError(t, os.MkdirAll(r.dir, 0o700)) // or the Manager creates it first
	r.write("b.yaml", manifestOf("b", "one"))
	r.until("it is followed", func() bool { return r.named("b-node") != nil })
}

func TestFailedReadingsAreRepeated(t *testing.T) {
	f := folder{dir: t.TempDir(), failed: true}
	w, err := f.open()
	require.NoError(t, err)
	f.watch = w
	f.events(func() {
		f.failed = false
		require.NoError(t, w.file.Close())
	})
	require.False(t, f.failed)
	require.True(t, f.all)
}

// TestFilesThatCouldNotBeRead checks that files are read again without an event, such as after EMFILE.
func TestFilesThatCouldNotBeRead(t *testing.T) {
	f := newFolder(t.TempDir(), func(file string, data []byte) (*corev1.Pod, error) {
		return decode(data, func(p *corev1.Pod) error { return complete(p, file, "node") })
	})
	f.load = func(path string) ([]byte, error) { return nil, &os.PathError{Op: "open", Path: path, Err: unix.EMFILE} }
	w, err := f.open()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "a.yaml"), []byte(manifestOf("a", "one")), 0o600))
	f.watch = w
	f.from[types.NamespacedName{Namespace: "default", Name: "left-node"}] = "a.yaml"
	pods, refused, ok := f.read()
	require.True(t, ok)
	require.Contains(t, pods, types.NamespacedName{Namespace: "default", Name: "left-node"},
		"what an earlier process left goes on")
	require.ErrorContains(t, refused[0].err, "too many open files")
	require.True(t, f.unread)
	f.load = readManifest
	f.events(func() {
		if pods, _, _ = f.read(); !f.unread {
			require.NoError(t, w.file.Close())
		}
	})
	require.Contains(t, pods, types.NamespacedName{Namespace: "default", Name: "a-node"})
}

// TestLinks checks that targets of links are read again when anything in the folder changes.
func TestLinks(t *testing.T) {
	r := newRig(t)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	require.NoError(t, os.MkdirAll(at("..one"), 0o700))
	require.NoError(t, os.MkdirAll(at("..two"), 0o700))
	r.write("..one/a", manifestOf("a", "one"))
	r.write("..two/a", manifestOf("a", "two"))
	require.NoError(t, os.Symlink("..one", at("..data")))
	require.NoError(t, os.Symlink("..data/a", at("a.yaml")))
	r.start()
	uid := r.pod("a-node").UID
	require.NoError(t, os.Symlink("..two", at("..next")))
	require.NoError(t, os.Rename(at("..next"), at("..data")))
	r.until("the other file is read", func() bool { return r.stopped[uid] })
	r.ends(uid)
	r.until("its pod runs", func() bool { p := r.named("a-node"); return p != nil && p.Spec.Containers[0].Image == "two" })
}

func TestLinksIntoFolders(t *testing.T) {
	r := newRig(t)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	for _, dir := range []string{"sub", "other"} {
		require.NoError(t, os.MkdirAll(at(dir), 0o700))
	}
	require.NoError(t, os.Symlink("sub/next", at("a.yaml")))
	require.NoError(t, os.Symlink("../other/a", at("sub/next")))
	r.start()
	uid := types.UID("")
	becomes := func(image string) {
		t.Helper()
		if uid != "" {
			r.until("the former pod stops", func() bool { return r.stopped[uid] })
			r.ends(uid)
		}
		r.until("its pod runs", func() bool {
			p := r.named("a-node")
			return p != nil && p.Spec.Containers[0].Image == image
		})
		uid = r.pod("a-node").UID
	}
	r.write("other/a", manifestOf("a", "one"))
	becomes("one")
	r.write("other/a", manifestOf("a", "two"))
	becomes("two")
	r.write("other/b", manifestOf("a", "three"))
	require.NoError(t, os.Symlink("../other/b", at("sub/newer")))
	require.NoError(t, os.Rename(at("sub/newer"), at("sub/next")))
	becomes("three")
	require.NoError(t, os.RemoveAll(at("sub")))
	r.until("the pod stops with what the link led to", func() bool { return r.stopped[uid] })
}

// TestFilesThatAreWrittenInPieces checks that files are read once closed, and renamed files when they appear.
func TestFilesThatAreWrittenInPieces(t *testing.T) {
	r := newRig(t)
	r.start()
	path, text := filepath.Join(r.dir, "a.yaml"), manifestOf("a", "one")+"# the end of a long file\n"
	// begin writes the first half, which would be a valid pod but for its truncated image; end writes the rest.
	begin := func(text string) (end func()) {
		file, err := os.Create(path)
		require.NoError(t, err)
		half := strings.Index(text, "#")
		_, err = file.WriteString(text[:half])
		require.NoError(t, err)
		return func() {
			_, err := file.WriteString(text[half:])
			require.NoError(t, err)
			require.NoError(t, file.Close())
		}
	}
	other := 0
	// reads causes a read of the folder.
	reads := func() {
		other++
		r.write(fmt.Sprintf("other-%d", other), manifestOf(fmt.Sprint("other", other), "one"))
		r.until("another file is read", func() bool { return r.named(fmt.Sprintf("other%d-node", other)) != nil })
	}
	end := begin(text)
	reads()
	require.Nil(t, r.pod("a-node"), "a file that is being written")
	end()
	r.until("the complete file is read", func() bool { return r.named("a-node") != nil })
	first := r.pod("a-node").UID

	end = begin(strings.Replace(text, "one", "two", 1))
	reads()
	require.False(t, r.stops()[first], "a file that is rewritten in place")
	end()
	r.until("the changed pod replaces the former one", func() bool { return r.stopped[first] })
	r.ends(first)
	r.until("it starts", func() bool { p := r.named("a-node"); return p != nil && p.Spec.Containers[0].Image == "two" })
	second := r.pod("a-node").UID
	require.NotEqual(t, first, second)

	r.write(".a.next", manifestOf("a", "three"))
	require.NoError(t, os.Rename(filepath.Join(r.dir, ".a.next"), path))
	r.until("a renamed file is read", func() bool { return r.stopped[second] })
	r.ends(second)
	r.until("it starts", func() bool { p := r.named("a-node"); return p != nil && p.Spec.Containers[0].Image == "three" })
	third := r.pod("a-node").UID

	r.write("a.yaml", "kind: [")
	r.until("the mistake is reported", func() bool {
		return strings.Contains(strings.Join(r.events, "\n"), "the pod of its previous content keeps running")
	})
	require.False(t, r.stops()[third])
	require.NoError(t, os.Rename(path, filepath.Join(filepath.Dir(r.dir), "taken")))
	r.until("the file was moved away", func() bool { return r.stopped[third] })
}

// TestSamePodAgain checks that a manifest that returns while its pod is ending or starting runs again afterwards.
func TestSamePodAgain(t *testing.T) {
	r := newRig(t)
	r.start()
	r.write("a.yaml", manifestOf("a", "one"))
	r.until("it runs", func() bool { return r.named("a-node") != nil })
	uid := r.pod("a-node").UID
	require.NoError(t, os.Remove(filepath.Join(r.dir, "a.yaml")))
	r.until("it is stopped", func() bool { return r.stopped[uid] })
	r.write("b.yaml", manifestOf("b", "one"))
	r.write("a.yaml", manifestOf("a", "one"))
	r.write("c.yaml", manifestOf("c", "one"))
	r.until("the folder was read", func() bool { return r.named("c-node") != nil })
	require.True(t, r.stops()[uid])
	r.ends(uid)
	r.until("it runs again", func() bool { p := r.named("a-node"); return p != nil && p.UID == uid && !r.stopped[uid] })
}

// TestFolderThatGoes checks that the pods of a removed folder end, and that a new folder of that name is followed.
func TestFolderThatGoes(t *testing.T) {
	r := newRig(t)
	r.start()
	parent, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	defer parent.Close()
	require.NoError(t, parent.Add(filepath.Dir(r.dir)))
	late := time.After(patience)
	for _, away := range []func() error{
		func() error { return os.RemoveAll(r.dir) },
		func() error { return os.Rename(r.dir, r.dir+".old") },
	} {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(r.dir), "next"), []byte(manifestOf("a", "one")), 0o600))
		for os.Rename(filepath.Join(filepath.Dir(r.dir), "next"), filepath.Join(r.dir, "a.yaml")) != nil {
			select {
			case <-parent.Events: // the folder was created again
			case <-late:
				t.Fatal("the folder is not made again")
			}
		}
		r.until("it runs", func() bool { return r.named("a-node") != nil })
		uid := r.pod("a-node").UID
		require.NoError(t, away())
		r.until("it is stopped", func() bool { return r.stopped[uid] })
		r.ends(uid)
	}
}

// TestNextProcess checks that unchanged pods are resumed, and that others end before their replacements start.
func TestNextProcess(t *testing.T) {
	r := newRig(t)
	stop := r.start()
	r.write("same.yaml", manifestOf("same", "one"))
	r.write("changed.yaml", manifestOf("changed", "one"))
	r.write("removed.yaml", manifestOf("removed", "one"))
	r.until("they run", func() bool { return len(r.pods) == 3 })
	before := map[string]types.UID{}
	for _, p := range r.all() {
		before[p.Name] = p.UID
	}
	stop()
	r.write("changed.yaml", manifestOf("changed", "two"))
	require.NoError(t, os.Remove(filepath.Join(r.dir, "removed.yaml")))
	r.nextProcess()
	require.Equal(t, map[types.UID]bool{before["changed-node"]: true, before["removed-node"]: true}, r.stops())
	require.Len(t, r.all(), 1)
	require.Equal(t, before["same-node"], r.pod("same-node").UID)
	r.m.Ended(before["changed-node"])
	r.until("the changed one starts", func() bool { return r.named("changed-node") != nil })
	require.NotEqual(t, before["changed-node"], r.pod("changed-node").UID)
}

func TestNextProcessWithAFileThatCannotBeUsed(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *rig){
		"a mistake": func(_ *testing.T, r *rig) { r.write("web.yaml", "kind: [") },
		"too large": func(_ *testing.T, r *rig) { r.write("web.yaml", strings.Repeat("x", maxManifest+1)) },
		"being written": func(t *testing.T, r *rig) {
			file, err := os.OpenFile(filepath.Join(r.dir, "web.yaml"), os.O_WRONLY, 0)
			require.NoError(t, err)
			t.Cleanup(func() { _ = file.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			stop := r.start()
			r.write("web.yaml", manifestOf("web", "one"))
			r.until("it runs", func() bool { return r.named("web-node") != nil })
			uid := r.pod("web-node").UID
			stop()
			spoil(t, r)
			r.write("a.yaml", manifestOf("web", "other"))
			r.nextProcess()
			require.Empty(t, r.stops())
			require.Contains(t, strings.Join(r.said(), "\n"), "a.yaml: "+r.dir+"/web.yaml defines the same pod")
			require.Empty(t, r.all(), "no second pod of the name")
			r.write("b.yaml", manifestOf("b", "one"))
			r.until("the folder is read again", func() bool { return r.named("b-node") != nil })
			require.Empty(t, r.stops())

			r.write(".web", manifestOf("web", "one"))
			require.NoError(t, os.Rename(filepath.Join(r.dir, ".web"), filepath.Join(r.dir, "web.yaml")))
			r.until("it is continued with its former content", func() bool { return r.pods[uid] != nil })
			require.Empty(t, r.stops())
			require.NoError(t, os.Remove(filepath.Join(r.dir, "web.yaml")))
			r.until("its file is gone", func() bool { return r.stopped[uid] })
			r.ends(uid)
			r.until("the other file has the pod", func() bool { return r.named("web-node") != nil })
		})
	}
}

package tasklogs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

func logs(t *testing.T, text string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pod")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "task"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "task", "0.log"), []byte(text), 0o600))
	return dir
}

func in(task string) Task { return Task{"ns", task} }

func find(a *Archive, task Task, pod, name string) (string, error) {
	dir, err := a.Dir(task, pod, name)
	if err != nil {
		return "", err
	}
	return newest(dir, "task")
}

func findNamed(a *Archive, task Task, name string) (string, error) {
	dir, err := a.DirNamed(task, name)
	if err != nil {
		return "", err
	}
	return newest(dir, "task")
}

// TestKeepFindForget checks that a new process finds kept logs until the task is forgotten.
func TestKeepFindForget(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".tasks")
	a := New(dir, 0, 0)
	from := logs(t, "hello")
	require.NoError(t, a.Keep(from, in("t-1"), "p-1", "t-0-1"))
	require.NoError(t, a.Keep(from, in("t-1"), "p-1", "t-0-1"), "it was moved before")
	require.NoDirExists(t, from)
	for _, a := range []*Archive{a, New(dir, 0, 0)} {
		path, err := find(a, in("t-1"), "p-1", "t-0-1")
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "hello", string(text))
	}
	require.NoError(t, New(dir, 0, 0).Forget(in("t-1")))
	_, err := find(a, in("t-1"), "p-1", "t-0-1")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestTheNewestInstance(t *testing.T) {
	from := logs(t, "old")
	for _, name := range []string{"9.log", "10.log", "10.log.1"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, "task", name), nil, 0o600))
	}
	a := New(filepath.Join(t.TempDir(), "a"), 0, 0)
	require.NoError(t, a.Keep(from, in("t"), "p", "n"))
	path, err := find(a, in("t"), "p", "n")
	require.NoError(t, err)
	require.Equal(t, "10.log", filepath.Base(path))
}

// TestNames checks that a log is found by its pod's name, and by that name with a star for the attempt's number, which
// means the last attempt.
func TestNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	a := New(dir, 0, 0)
	for name, text := range map[string]string{
		"t.x-12345678-7-2":  "second",
		"t.x-12345678-7-10": "tenth",
		"t.x-12345678-17-1": "another index",
	} {
		require.NoError(t, a.Keep(logs(t, text), in("t"), "uid-of-"+text[:3], name))
	}
	require.NoError(t, a.Keep(logs(t, "by hand"), in("t"), "u", strings.Repeat("a", 200)),
		"its name is not that of an attempt's pod")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "t", "old", "task"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t", "old", "task", "0.log"), []byte("earlier version"), 0o600))
	read := func(path string, err error) string {
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "second", read(findNamed(a, in("t"), "t.x-12345678-7-2")))
	require.Equal(t, "tenth", read(findNamed(a, in("t"), "t.x-12345678-7-*")))
	require.Equal(t, "another index", read(findNamed(a, in("t"), "t.x-12345678-17-*")))
	require.Equal(t, "by hand", read(find(a, in("t"), "u", strings.Repeat("a", 200))))
	require.Equal(t, "earlier version", read(find(a, in("t"), "old", "t.x-12345678-3-1")))
	for _, none := range []string{"t.x-12345678-7-*x", "t.x-12345678-8-*", "t.x-12345678-1*-1", "x-12345678-7-2"} {
		_, err := findNamed(a, in("t"), none)
		require.ErrorIs(t, err, fs.ErrNotExist, none)
	}
}

// TestBounds checks that the oldest logs, also of an earlier process, are removed beyond the bounds.
func TestBounds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	for i := range 5 {
		require.NoError(t, New(dir, 3, 0).Keep(logs(t, "x"), in("t"), fmt.Sprint("p-", i), "n"))
	}
	a := New(dir, 3, 100)
	for i, there := range []bool{false, false, true, true, true} {
		_, err := find(a, in("t"), fmt.Sprint("p-", i), "n")
		require.Equal(t, there, err == nil, i)
	}
	require.NoError(t, a.Keep(logs(t, strings.Repeat("x", 101)), in("u"), "q", "n"))
	require.NoDirExists(t, filepath.Join(dir, "ns_t"))
	_, err := find(a, in("u"), "q", "n")
	require.NoError(t, err, "the last one stays, whatever its size")
}

// TestShares checks that a namespace beyond a bound displaces its own logs, oldest first, and not the logs of a
// namespace that keeps less.
func TestShares(t *testing.T) {
	for name, a := range map[string]*Archive{
		"number": New(filepath.Join(t.TempDir(), "a"), 5, 0), "bytes": New(filepath.Join(t.TempDir(), "a"), 0, 50),
	} {
		text := strings.Repeat("x", 10)
		small, large := Task{"small", "t"}, Task{"large", "t"}
		require.NoError(t, a.Keep(logs(t, text), small, "p", "n"))
		for i := range 20 {
			require.NoError(t, a.Keep(logs(t, text), large, fmt.Sprint("p-", i), "n"))
		}
		_, err := find(a, small, "p", "n")
		require.NoError(t, err, name)
		for i := range 20 {
			_, err := find(a, large, fmt.Sprint("p-", i), "n")
			require.Equal(t, i >= 16, err == nil, "%s: %d", name, i)
		}
	}
}

// TestForgedOwners checks that a pod of another namespace that names a task as its owner does not reach the task's
// logs: neither by writing into them, nor by the deletion of its own logs.
func TestForgedOwners(t *testing.T) {
	dir := t.TempDir()
	h := part.Host{LogDir: dir}
	p := Part(h)
	mine := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "t-12345678-1", UID: "p-1"}}
	mine.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(
		&tasks.Task{ObjectMeta: metav1.ObjectMeta{Name: "t", UID: "uid"}}, tasks.GroupVersion.WithKind("Task"))}
	forged := mine.DeepCopy()
	forged.Namespace, forged.UID = "theirs", "p-2"
	for _, pod := range []*corev1.Pod{mine, forged} {
		from := filepath.Join(dir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
		require.NoError(t, os.Rename(logs(t, pod.Namespace), from))
		require.NoError(t, p.Keep(from, p.Owner(pod), pod.UID, pod.Name))
	}
	a := New(filepath.Join(dir, directory), 0, 0)
	read := func(path string, err error) string {
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "mine", read(findNamed(a, Task{"mine", "uid"}, "t-12345678-*")))
	require.NoError(t, a.Forget(Task{"theirs", "uid"}))
	require.Equal(t, "mine", read(find(a, Task{"mine", "uid"}, "p-1", "t-12345678-1")))
	_, err := find(a, Task{"mine", "uid"}, "p-2", "t-12345678-1")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestOutput checks that only regular files and directories of the output directory are kept, whatever an attempt has
// put there, and that too many or too large files are not kept, with a reason.
func TestOutput(t *testing.T) {
	volume := filepath.Join(t.TempDir(), "v")
	require.NoError(t, os.MkdirAll(filepath.Join(volume, "sub"), 0o755))
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "sub", "result"), []byte("done"), 0o755))
	require.NoError(t, os.Symlink(secret, filepath.Join(volume, "link")))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(volume, "sub", "dir")))
	require.NoError(t, unix.Mkfifo(filepath.Join(volume, "fifo"), 0o600))
	to := t.TempDir()
	for range 2 { // it may be repeated
		archiveOutput(volume, to)
	}
	f, err := os.Open(filepath.Join(to, outputFile))
	require.NoError(t, err)
	defer f.Close()
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		names = append(names, h.Name)
	}
	require.Equal(t, []string{"sub", "sub/result"}, names)

	require.NoError(t, os.Truncate(filepath.Join(volume, "sub", "result"), maxOutput+1)) // sparse
	to = t.TempDir()
	archiveOutput(volume, to)
	why, err := os.ReadFile(filepath.Join(to, outputError))
	require.NoError(t, err)
	require.Equal(t, errTooLarge.Error(), string(why))
	require.NoFileExists(t, filepath.Join(to, outputFile))
	archiveOutput(filepath.Join(volume, "none"), t.TempDir())
}

func TestNamesAreChecked(t *testing.T) {
	a := New(t.TempDir(), 0, 0)
	for _, bad := range []string{"", "..", "../x", "a/b", strings.Repeat("a", 65)} {
		require.Error(t, a.Keep(logs(t, ""), in(bad), "p", "n"))
		require.Error(t, a.Keep(logs(t, ""), in("t"), bad, "n"))
		require.Error(t, a.Forget(in(bad)))
		_, err := find(a, in("t"), bad, "n")
		require.Error(t, err)
		_, err = findNamed(a, in(bad), "n")
		require.Error(t, err)
		_, err = findNamed(a, in("t"), bad)
		require.Error(t, err)
	}
}

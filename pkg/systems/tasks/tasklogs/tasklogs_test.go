package tasklogs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func logs(t *testing.T, text string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pod")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "task"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "task", "0.log"), []byte(text), 0o600))
	return dir
}

// TestKeepFindForget checks that a new process finds kept logs until the task is forgotten.
func TestKeepFindForget(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".tasks")
	a := New(dir, 0, 0)
	from := logs(t, "hello")
	require.NoError(t, a.Keep(from, "t-1", "p-1", "t-0-1"))
	require.NoError(t, a.Keep(from, "t-1", "p-1", "t-0-1"), "it was moved before")
	require.NoDirExists(t, from)
	for _, a := range []*Archive{a, New(dir, 0, 0)} {
		path, err := a.Find("t-1", "p-1", "t-0-1", "task")
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "hello", string(text))
	}
	require.NoError(t, New(dir, 0, 0).Forget("t-1"))
	_, err := a.Find("t-1", "p-1", "t-0-1", "task")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestTheNewestInstance(t *testing.T) {
	from := logs(t, "old")
	for _, name := range []string{"9.log", "10.log", "10.log.1"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, "task", name), nil, 0o600))
	}
	a := New(filepath.Join(t.TempDir(), "a"), 0, 0)
	require.NoError(t, a.Keep(from, "t", "p", "n"))
	path, err := a.Find("t", "p", "n", "task")
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
		require.NoError(t, a.Keep(logs(t, text), "t", "uid-of-"+text[:3], name))
	}
	require.NoError(t, a.Keep(logs(t, "by hand"), "t", "u", strings.Repeat("a", 200)),
		"its name is not that of an attempt's pod")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "t", "old", "task"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t", "old", "task", "0.log"), []byte("earlier version"), 0o600))
	read := func(path string, err error) string {
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "second", read(a.FindNamed("t", "t.x-12345678-7-2", "task")))
	require.Equal(t, "tenth", read(a.FindNamed("t", "t.x-12345678-7-*", "task")))
	require.Equal(t, "another index", read(a.FindNamed("t", "t.x-12345678-17-*", "task")))
	require.Equal(t, "by hand", read(a.Find("t", "u", strings.Repeat("a", 200), "task")))
	require.Equal(t, "earlier version", read(a.Find("t", "old", "t.x-12345678-3-1", "task")))
	for _, none := range []string{"t.x-12345678-7-*x", "t.x-12345678-8-*", "t.x-12345678-1*-1", "x-12345678-7-2"} {
		_, err := a.FindNamed("t", none, "task")
		require.ErrorIs(t, err, fs.ErrNotExist, none)
	}
}

// TestBounds checks that the oldest logs, also of an earlier process, are removed beyond the bounds.
func TestBounds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	for i := range 5 {
		require.NoError(t, New(dir, 3, 0).Keep(logs(t, "x"), "t", fmt.Sprint("p-", i), "n"))
	}
	a := New(dir, 3, 100)
	for i, there := range []bool{false, false, true, true, true} {
		_, err := a.Find("t", fmt.Sprint("p-", i), "n", "task")
		require.Equal(t, there, err == nil, i)
	}
	require.NoError(t, a.Keep(logs(t, strings.Repeat("x", 101)), "u", "q", "n"))
	require.NoDirExists(t, filepath.Join(dir, "t"))
	_, err := a.Find("u", "q", "n", "task")
	require.NoError(t, err, "the last one stays, whatever its size")
}

func TestNamesAreChecked(t *testing.T) {
	a := New(t.TempDir(), 0, 0)
	for _, bad := range []string{"", "..", "../x", "a/b", strings.Repeat("a", 65)} {
		require.Error(t, a.Keep(logs(t, ""), bad, "p", "n"))
		require.Error(t, a.Keep(logs(t, ""), "t", bad, "n"))
		require.Error(t, a.Forget(bad))
		_, err := a.Find("t", bad, "n", "task")
		require.Error(t, err)
		_, err = a.FindNamed(bad, "n", "task")
		require.Error(t, err)
		_, err = a.FindNamed("t", bad, "task")
		require.Error(t, err)
	}
}

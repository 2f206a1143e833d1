package static

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSavingInVim(t *testing.T) {
	r := newRig(t)
	r.start()
	path := filepath.Join(r.dir, "web.yaml")
	seen := 0
	reads := func() { // waits until the folder is read
		seen++
		name := fmt.Sprint("other-", seen)
		r.write(name+".yaml", manifestOf(name, "one"))
		r.until("the folder is read", func() bool { return r.named(name+"-node") != nil })
	}
	r.write("web.yaml", manifestOf("web", "one"))
	r.until("it runs", func() bool { return r.named("web-node") != nil })
	uid := r.pod("web-node").UID
	for range 2 {
		require.NoError(t, os.Rename(path, path+"~"))
		reads()
		r.write("web.yaml", manifestOf("web", "one"))
		reads()
		require.NoError(t, os.Remove(path+"~"))
		reads()
	}
	require.Empty(t, r.stops())
	require.Empty(t, r.said(), "the backup is left alone")
	require.NoError(t, os.Rename(path, path+"~"))
	require.NoError(t, os.Rename(path+"~", path))
	reads()
	require.Empty(t, r.stops(), "it was not written after all")

	require.NoError(t, os.Rename(path, path+"~"))
	r.write("web.yaml", manifestOf("web", "two"))
	r.until("its content changed", func() bool { return r.stopped[uid] })
	r.ends(uid)
	r.until("the new one runs", func() bool { return r.named("web-node") != nil })
	require.Equal(t, "two", r.pod("web-node").Spec.Containers[0].Image)
	uid = r.pod("web-node").UID
	require.NoError(t, os.Remove(path))
	r.until("without the file the backup is a file as any other", func() bool { return r.stopped[uid] })
	r.ends(uid)
	r.until("it runs", func() bool { p := r.named("web-node"); return p != nil && p.Spec.Containers[0].Image == "one" })

	for what, end := range map[string]func() error{
		"the backup is removed": func() error { return os.Remove(path + "~~") },
		"it is moved away":      func() error { return os.Rename(path+"~~", filepath.Join(filepath.Dir(r.dir), "away")) },
	} {
		r.write("web.yaml~", manifestOf("web", "one"))
		r.until("it runs", func() bool { return r.named("web-node") != nil })
		uid = r.pod("web-node").UID
		require.NoError(t, os.Rename(path+"~", path+"~~"))
		reads()
		require.Empty(t, r.stops())
		require.NoError(t, end())
		r.until(what, func() bool { return r.stopped[uid] })
		r.ends(uid)
	}
}

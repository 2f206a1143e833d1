package cdi

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	low, high := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write(low, "a.json", `{"cdiVersion":"0.5.0","kind":"v.com/c","devices":[
		{"name":"0","containerEdits":{"env":["D=0"],"deviceNodes":[{"path":"/dev/d0","permissions":"rw"}],"additionalGids":[44,0]}},
		{"name":"1","containerEdits":{"env":["D=1"],"mounts":[{"hostPath":"/lib/d","containerPath":"/d","options":["ro","nosuid","nodev","bind"]}]}},
		{"name":"hooked","containerEdits":{"hooks":[{"hookName":"createContainer","path":"/bin/true"}]}},
		{"name":"tmpfs","containerEdits":{"mounts":[{"hostPath":"tmpfs","containerPath":"/t","type":"tmpfs"}]}},
		{"name":"relative","containerEdits":{"deviceNodes":[{"path":"dev/d0"}]}}],
		"containerEdits":{"env":["ALL=1"]}}`)
	write(high, "b.yaml", "cdiVersion: 1.0.0\nkind: v.com/c\ndevices: [{name: \"1\", containerEdits: {env: [D=newer]}}]\n")
	write(high, "broken.json", "{")
	write(high, "notes.txt", "not a specification")
	dirs := []string{low, high, filepath.Join(low, "missing")}

	e, err := Find(dirs, []string{"v.com/c=0", "v.com/c=0"})
	require.NoError(t, err)
	require.Equal(t,
		Edits{Env: []string{"ALL=1", "D=0"}, Devices: []Device{{Path: "/dev/d0", Permissions: "rw"}}, Groups: []int64{44}}, e)
	e, err = Find(dirs, []string{"v.com/c=1"})
	require.NoError(t, err)
	require.Equal(t, []string{"D=newer"}, e.Env)
	e, err = Find(dirs[:1], []string{"v.com/c=1"})
	require.NoError(t, err)
	require.Equal(t,
		[]Mount{{HostPath: "/lib/d", ContainerPath: "/d", ReadOnly: true, NoSUID: true, NoDev: true, Propagation: "private"}},
		e.Mounts)

	for id, want := range map[string]string{
		"v.com/c=hooked": "CDI hooks", "v.com/c=tmpfs": `unknown type "tmpfs"`,
		"v.com/c=relative": `invalid path "dev/d0"`, "v.com/c=2": "broken.json",
		"nonsense": "invalid CDI device name", "v.com/c=": "invalid CDI device name",
	} {
		_, err := Find(dirs, []string{id})
		require.ErrorContains(t, err, want, id)
	}
	_, err = Find(dirs[:1], []string{"v.com/c=2"})
	require.EqualError(t, err, "unresolvable CDI device v.com/c=2")
	write(low, "again.json", `{"cdiVersion":"0.5.0","kind":"v.com/c","devices":[{"name":"0"}]}`)
	_, err = Find(dirs, []string{"v.com/c=0"})
	require.ErrorContains(t, err, "is in both")
	e, err = Find(dirs, nil)
	require.NoError(t, err)
	require.Empty(t, e)
}

package commands

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConvertLegacyTakesDirectories(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	convert := func(name string) (string, error) {
		var out bytes.Buffer
		err := ConvertLegacy(name, "", strings.NewReader(""), &out)
		return out.String(), err
	}
	_, err := convert(dir)
	require.ErrorContains(t, err, "has no .yaml, .yml or .json file")
	write("b.yaml", "kind: ReplicaSet\nmetadata: {name: calc}\nspec: {container: echo, replicas: 2}")
	write("a.yml", "kind: Container\nmetadata: {name: echo}\nspec: {module: workers, function: echo_worker}")
	write("README.md", "no: [manifest")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "below.yaml"), 0o700))
	require.NoError(t, os.Symlink("a.yml", filepath.Join(dir, "link")))
	out, err := convert(dir)
	require.NoError(t, err)
	require.Less(t, strings.Index(out, "kind: Pod"), strings.Index(out, "kind: Worker"), out)
	out, err = convert(filepath.Join(dir, "link"))
	require.NoError(t, err)
	require.Contains(t, out, "kind: Pod")
	_, err = convert(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

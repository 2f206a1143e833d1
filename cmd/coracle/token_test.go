package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("from-file\n"), 0o600))
	read := func(token, tokenFile, stdin string) (string, error) {
		c := config.Default()
		c.Token, c.TokenFile = token, tokenFile
		err := readToken(&c, strings.NewReader(stdin))
		return c.Token, err
	}
	for _, test := range []struct{ token, file, stdin, want string }{
		{"given", "", "ignored", "given"},
		{"", "", "ignored", ""},
		{"-", "", "piped\n", "piped"},
		{"", file, "ignored", "from-file"},
	} {
		got, err := read(test.token, test.file, test.stdin)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
	_, err := read("-", "", "\n")
	require.ErrorContains(t, err, "contains no join token")
	_, err = read("-", "", strings.Repeat("x", 1<<20))
	require.ErrorContains(t, err, "larger than")
	_, err = read("", file+"x", "")
	require.Error(t, err)
}

// TestTokenTakesADataDirectory checks that --data-dir selects the cluster, as for `coracle start`.
func TestTokenTakesADataDirectory(t *testing.T) {
	dir := t.TempDir()
	out, err := coracle(t, "token", "ls", "--data-dir", dir).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), filepath.Join(dir, "kubeconfig"))
}

func TestVersionFlag(t *testing.T) {
	want, err := coracle(t, "version").Output()
	require.NoError(t, err)
	got, err := coracle(t, "--version").Output()
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

package snapshot

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func archive(t *testing.T, files ...File) []byte {
	var out bytes.Buffer
	w, err := NewWriter(&out, Manifest{Coracle: "v1", Revision: 7}, time.Unix(1000, 5))
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, w.AddFile(f))
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func TestRoundTrip(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "pki", "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "pki", "ca.key"), []byte("key"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "pki", ".tmp-1"), []byte("unfinished"), 0o600))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(root, "pki", "link")))
	files, err := Files(root, "pki")
	require.NoError(t, err)
	require.Equal(t, []File{{"pki/ca.key", []byte("key")}}, files)
	none, err := Files(root, "encryption")
	require.NoError(t, err)
	require.Empty(t, none)
	require.True(t, Same(files, files))
	require.False(t, Same(files, []File{{"pki/ca.key", []byte("other")}}))

	raw := archive(t, append(files, File{Database, bytes.Repeat([]byte("db"), 1<<20)})...)
	dir := t.TempDir()
	m, err := Unpack(bytes.NewReader(raw), dir)
	require.NoError(t, err)
	require.Equal(t, int64(7), m.Revision)
	require.Equal(t, time.Unix(1000, 0).UTC(), m.Taken)
	key, err := os.ReadFile(filepath.Join(dir, "pki", "ca.key"))
	require.NoError(t, err)
	require.Equal(t, "key", string(key))
	info, err := os.Stat(filepath.Join(dir, Database))
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, info.Size())
	require.EqualValues(t, 0o600, info.Mode().Perm())
}

// An archive cut at any byte, or with any byte changed, is refused or unpacks to what was saved.
func TestDamage(t *testing.T) {
	raw := archive(t, File{"pki/ca.key", []byte("key")}, File{Database, []byte("database")})
	for n := range raw {
		_, err := Unpack(bytes.NewReader(raw[:n]), t.TempDir())
		if n < len(raw)-16 { // the last bytes are a checksum and padding
			require.Error(t, err, n)
		}
		damaged := bytes.Clone(raw)
		damaged[n] ^= 0x55
		dir := t.TempDir()
		if _, err := Unpack(bytes.NewReader(damaged), dir); err == nil {
			db, err := os.ReadFile(filepath.Join(dir, Database))
			require.NoError(t, err)
			require.Equal(t, "database", string(db), n)
		}
	}
}

func TestHostileArchives(t *testing.T) {
	pack := func(headers ...tar.Header) io.Reader {
		var out bytes.Buffer
		z, err := zstd.NewWriter(&out)
		require.NoError(t, err)
		w := tar.NewWriter(z)
		for _, h := range headers {
			require.NoError(t, w.WriteHeader(&h))
			_, err := io.CopyN(w, strings.NewReader(strings.Repeat("x", 1<<16)), min(h.Size, 1<<16))
			require.NoError(t, err)
			if h.Size > 1<<16 {
				break
			}
		}
		_ = w.Flush()
		require.NoError(t, z.Close())
		return &out
	}
	for want, r := range map[string]io.Reader{
		"does not belong there": pack(tar.Header{Name: "../escape", Size: 1}),
		`"pki/../../escape"`:    pack(tar.Header{Name: "pki/../../escape", Size: 1}),
		`"/etc/shadow"`:         pack(tar.Header{Name: "/etc/shadow", Size: 1}),
		`"pki/link"`: pack(tar.Header{
			Name:     "pki/link",
			Typeflag: tar.TypeSymlink,
			Linkname: "/etc",
		}),
		"entry pki/large is too large": pack(tar.Header{Name: "pki/large", Size: mostFileBytes + 1}),
		"entry store.db is too large":  pack(tar.Header{Name: Database, Size: mostDatabaseBytes + 1}),
		"the manifest is too large":    pack(tar.Header{Name: manifestName, Size: mostFileBytes + 1}),
		"the snapshot is incomplete":   pack(tar.Header{Name: "pki/a", Size: 1}),
		"file exists": pack(tar.Header{Name: "pki/a", Size: 1},
			tar.Header{Name: "pki/a", Size: 1}),
		"not a snapshot":               strings.NewReader("PK\x03\x04 something else"),
		"the snapshot has no database": bytes.NewReader(archive(t, File{"pki/a", nil})),
		"not a snapshot, or a damaged one: boom": io.MultiReader(bytes.NewReader(archive(t, File{Database, nil})[:20]),
			failing{}),
	} {
		dir := t.TempDir()
		_, err := Unpack(r, dir)
		require.ErrorContains(t, err, want)
		_, err = os.Stat(filepath.Join(filepath.Dir(dir), "escape"))
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	_, err := NewWriter(io.Discard, Manifest{}, time.Now())
	require.NoError(t, err)
	w, err := NewWriter(io.Discard, Manifest{}, time.Now())
	require.NoError(t, err)
	require.ErrorContains(t, w.AddFile(File{"agent/x", nil}), "cannot be part of a snapshot")
	w.Abort()
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("boom") }

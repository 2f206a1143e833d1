package containerd

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"testing"

	"github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":2},"layers":[{"size":1}]}`), []byte(`{"config":{"Env":["A=b"]}}`))
	f.Add([]byte(`{"layers":[{"size":-1}]}`), []byte(`{"rootfs":{"diff_ids":["x"]}}`))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		var m v1.Manifest
		if json.Unmarshal(manifest, &m) == nil && checkManifest(&m, 1<<30) == nil {
			var total int64
			for _, l := range m.Layers {
				total += l.Size
			}
			require.LessOrEqual(t, total, int64(1<<30))
			require.LessOrEqual(t, m.Config.Size, int64(maxConfig))
		}
		var c v1.Image
		if json.Unmarshal(config, &c) == nil {
			_, _ = kept(c.Config)
		}
	})
}

// Whatever an archive contains, at most room bytes are read from it.
func FuzzArchive(f *testing.F) {
	packed := func(write func(w *tar.Writer)) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		write(w)
		_ = w.Close()
		return out.Bytes()
	}
	f.Add(packed(func(w *tar.Writer) {
		_ = w.WriteHeader(&tar.Header{Name: "manifest.json", Size: 2})
		_, _ = w.Write([]byte("[]"))
		_ = w.WriteHeader(&tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "manifest.json"})
	}))
	f.Add(packed(func(w *tar.Writer) {
		_ = w.WriteHeader(&tar.Header{Name: "a", Size: 2048, PAXRecords: map[string]string{"X.y": "z"}})
		_, _ = w.Write(make([]byte, 2048))
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		const room = 4096
		archive := boundedArchive(bytes.NewReader(data), room)
		defer archive.Close()
		from := tar.NewReader(archive)
		var total int64
		for {
			h, err := from.Next()
			if err != nil {
				break
			}
			require.Contains(t, []byte{tar.TypeReg, tar.TypeSymlink}, h.Typeflag)
			total += h.Size
		}
		require.LessOrEqual(t, total, int64(room))
	})
}

package containerd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// hostile is a registry on loopback with configurable responses.
type hostile struct {
	*httptest.Server
	mu       sync.Mutex
	files    map[string][]byte // path -> body; types has the media types of manifests
	types    map[string]string
	override func(w http.ResponseWriter, r *http.Request) bool
	asked    []*http.Request
}

func newHostile(t testing.TB) *hostile {
	h := &hostile{files: map[string][]byte{}, types: map[string]string{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.asked = append(h.asked, r.Clone(context.Background()))
	override, body, kind := h.override, h.files[r.URL.Path], h.types[r.URL.Path]
	h.mu.Unlock()
	if override != nil && override(w, r) {
		return
	}
	if body == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

func (h *hostile) blob(kind string, data []byte) v1.Descriptor {
	d := v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))}
	h.files["/v2/test/image/blobs/"+d.Digest.String()] = data
	return d
}

func (h *hostile) manifest(tag, kind string, value any) v1.Descriptor {
	data, ok := value.([]byte)
	if !ok {
		data, _ = json.Marshal(value)
	}
	d := v1.Descriptor{
		MediaType: kind,
		Digest:    digest.FromBytes(data),
		Size:      int64(len(data)),
		Platform:  &v1.Platform{OS: "linux", Architecture: goruntime.GOARCH},
	}
	for _, name := range []string{tag, d.Digest.String()} {
		h.files["/v2/test/image/manifests/"+name], h.types["/v2/test/image/manifests/"+name] = data, kind
	}
	return d
}

func (h *hostile) ref(tag string) string {
	return strings.TrimPrefix(h.URL, "http://") + "/test/image:" + tag
}

func configOf(env string, layers ...digest.Digest) []byte {
	data, _ := json.Marshal(v1.Image{
		Platform: v1.Platform{OS: "linux", Architecture: goruntime.GOARCH},
		Config:   v1.ImageConfig{Cmd: []string{"/a"}, Env: []string{"A=" + env}},
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: layers},
	})
	return data
}

func manifestOf(config v1.Descriptor, layers ...v1.Descriptor) v1.Manifest {
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: config, Layers: layers}
	m.SchemaVersion = 2
	return m
}

// layerOf returns a layer with files of the given numbers of zeros.
func layerOf(t testing.TB, write func(w *tar.Writer)) (packed []byte, diff digest.Digest) {
	var out bytes.Buffer
	sum := sha256.New()
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	require.NoError(t, err)
	w := tar.NewWriter(io.MultiWriter(zip, sum))
	write(w)
	require.NoError(t, w.Close())
	require.NoError(t, zip.Close())
	return out.Bytes(), digest.NewDigest(digest.SHA256, sum)
}

func bare(t testing.TB) *Runtime {
	r, stop := open(t, testConfig(t))
	t.Cleanup(func() {
		require.NoError(t, r.Purge(context.Background()))
		stop()
	})
	return r
}

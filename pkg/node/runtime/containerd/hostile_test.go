package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Images that exceed a limit are refused by a pull, and leave nothing behind.
func TestHostileImages(t *testing.T) {
	r := bare(t)
	h := newHostile(t)
	room := func(n int64) { // disk space for unpacking
		r.engine.reserve = func(int64) int64 {
			var s unix.Statfs_t
			require.NoError(t, unix.Statfs(r.engine.root, &s))
			return int64(s.Bavail)*s.Bsize - n
		}
	}
	small, smallDiff := layerOf(t, func(w *tar.Writer) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Mode: 0o755}))
	})
	smallLayer := h.blob(v1.MediaTypeImageLayerGzip, small)
	config := h.blob(v1.MediaTypeImageConfig, configOf("x", smallDiff))
	h.manifest("good", v1.MediaTypeImageManifest, manifestOf(config, smallLayer))

	bomb, bombDiff := layerOf(t, func(w *tar.Writer) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o755, Size: 96 << 20}))
		_, err := io.CopyN(w, zeroReader{}, 96<<20)
		require.NoError(t, err)
	})
	h.manifest("bomb", v1.MediaTypeImageManifest,
		manifestOf(h.blob(v1.MediaTypeImageConfig, configOf("x", bombDiff)), h.blob(v1.MediaTypeImageLayerGzip, bomb)))
	pax, paxDiff := layerOf(t, func(w *tar.Writer) {
		for i := range 200 {
			require.NoError(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint(i) + "/", Typeflag: tar.TypeDir, Mode: 0o755,
				PAXRecords: map[string]string{"CORACLE.x": strings.Repeat("x", 900<<10)}}))
		}
	})
	h.manifest("attributes", v1.MediaTypeImageManifest,
		manifestOf(h.blob(v1.MediaTypeImageConfig, configOf("x", paxDiff)), h.blob(v1.MediaTypeImageLayerGzip, pax)))

	large := h.blob(v1.MediaTypeImageConfig, configOf(strings.Repeat("x", maxConfig), smallDiff))
	h.manifest("config", v1.MediaTypeImageManifest, manifestOf(large, smallLayer))
	lying := large
	lying.Size = 100
	h.manifest("lying-config", v1.MediaTypeImageManifest, manifestOf(lying, smallLayer))
	disguised := h.blob(v1.MediaTypeImageLayer, configOf(strings.Repeat("x", maxConfig), smallDiff))
	h.manifest("disguised-config", v1.MediaTypeImageManifest, manifestOf(disguised, smallLayer))
	h.manifest("environment", v1.MediaTypeImageManifest,
		manifestOf(h.blob(v1.MediaTypeImageConfig, configOf(strings.Repeat("x", maxKept), smallDiff)), smallLayer))
	h.manifest("objects", v1.MediaTypeImageIndex,
		[]byte(`{"schemaVersion":2,"mediaType":"`+v1.MediaTypeImageIndex+`","manifests":[{}`+
			strings.Repeat(",{}", maxObjects)+"]}"))
	h.manifest("manifest", v1.MediaTypeImageManifest,
		[]byte(`{"schemaVersion":2,"annotations":{"a":"`+strings.Repeat("x", maxManifest)+`"}}`))
	var layers []v1.Descriptor
	for range maxLayers + 1 {
		layers = append(layers, smallLayer)
	}
	h.manifest("layers", v1.MediaTypeImageManifest, manifestOf(config, layers...))
	huge := smallLayer
	huge.Size = 1 << 50
	h.manifest("disk", v1.MediaTypeImageManifest, manifestOf(config, huge))
	index := h.manifest("deep-0", v1.MediaTypeImageManifest, manifestOf(config, smallLayer))
	for i := range maxTree + 1 {
		x := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{index}}
		x.SchemaVersion = 2
		index = h.manifest(fmt.Sprint("deep-", i+1), v1.MediaTypeImageIndex, x)
	}
	wrong := smallLayer
	wrong.Digest = digest.FromString("another")
	h.files["/v2/test/image/blobs/"+wrong.Digest.String()] = small
	h.manifest("digest", v1.MediaTypeImageManifest, manifestOf(config, wrong))
	// An index that leads to a layer instead of a manifest. Nothing limits the sizes of layers without one.
	stray := h.blob(v1.MediaTypeImageLayer, make([]byte, 64<<20))
	strays := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{stray}}
	strays.SchemaVersion = 2
	h.manifest("stray", v1.MediaTypeImageIndex, strays)
	// 100 KB that a decoder needs a gigabyte of memory for.
	var window bytes.Buffer
	zip, err := zstd.NewWriter(&window, zstd.WithWindowSize(zstd.MaxWindowSize), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	_, err = io.CopyN(zip, zeroReader{}, 1<<30)
	require.NoError(t, errors.Join(err, zip.Close()))
	h.manifest("window", v1.MediaTypeImageManifest, manifestOf(h.blob(v1.MediaTypeImageConfig, configOf("x", smallDiff)),
		h.blob(v1.MediaTypeImageLayerZstd, window.Bytes())))
	zip = nil
	short := smallLayer
	short.Size--
	h.manifest("size", v1.MediaTypeImageManifest, manifestOf(config, short))

	ctx := context.Background()
	blobsBefore := size(t, r.config.DataDir+"/content")
	for tag, want := range map[string]string{
		"bomb": "unpacked it needs more", "attributes": "names and attributes", "config": "configuration", "lying-config": "",
		"disguised-config": "type",
		"environment":      "environment", "objects": "objects", "manifest": "", "layers": "layers",
		"disk":                         "the space that the disk has",
		fmt.Sprint("deep-", maxTree+1): "manifests", "digest": "", "size": "",
		"stray": "no manifest", "window": "window",
	} {
		room(48 << 20)
		if tag == "attributes" { // the attributes exceed the limit only when they are counted
			room(1 << 30)
		}
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		_, err := r.Images().Pull(ctx, h.ref(tag), nil, runtime.PullObserver{})
		goruntime.ReadMemStats(&after)
		require.ErrorContains(t, err, want, tag)
		// mostly garbage; half as much more with the race detector
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30), tag)
		_, err = r.Images().Get(ctx, h.ref(tag))
		require.ErrorIs(t, err, runtime.ErrNotFound, tag)
		require.LessOrEqual(t, size(t, r.config.DataDir+"/content"), blobsBefore, tag)
		require.Zero(t, size(t, r.config.DataDir+"/"+snapshotter+"/snapshots"), tag)
	}
	_, err = r.Images().Pull(ctx, h.ref("good"), nil, runtime.PullObserver{})
	require.NoError(t, err)

	// A bad image does not replace a good one of the same name.
	room(48 << 20)
	h.files["/v2/test/image/manifests/good"] = h.files["/v2/test/image/manifests/bomb"]
	_, err = r.Images().Pull(ctx, h.ref("good"), nil, runtime.PullObserver{})
	require.ErrorIs(t, err, runtime.ErrRefused)
	_, err = r.Images().Get(ctx, h.ref("good"))
	require.NoError(t, err)
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Images that an earlier version or another client stored are checked when they are read at the start.
func TestHostileImageInTheStoreIsSkipped(t *testing.T) {
	r := bare(t)
	ctx := r.engine.in(context.Background())
	put := func(kind string, data []byte) v1.Descriptor {
		d := v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))}
		w, err := r.engine.ContentStore().Writer(ctx, withRef(d.Digest.String()))
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
		require.NoError(t, w.Commit(ctx, d.Size, d.Digest))
		return d
	}
	for name, kind := range map[string]string{
		"a": v1.MediaTypeImageConfig,
		"b": v1.MediaTypeImageLayer,
		"c": "text/plain",
	} {
		m, err := json.Marshal(manifestOf(put(kind, configOf(name+strings.Repeat("x", 64<<20)))))
		require.NoError(t, err)
		_, err = r.engine.ImageService().Create(ctx, imagestore.Image{
			Name: "x.io/" + name + ":1", Target: put(v1.MediaTypeImageManifest, m),
		})
		require.NoError(t, err)
	}
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	require.NoError(t, r.images.reload(ctx))
	goruntime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
	list, err := r.Images().List(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
}

// A registry that stalls, redirects in circles or never ends fails a pull after its patience.
func TestHostileRegistry(t *testing.T) {
	r := bare(t)
	r.images.patience = patience{silence: 300 * time.Millisecond, window: time.Second, bytes: 64 << 10}
	h := newHostile(t)
	layer, diff := layerOf(t, func(w *tar.Writer) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Mode: 0o755}))
	})
	l := h.blob(v1.MediaTypeImageLayerGzip, layer)
	l.Size = 1 << 20
	h.manifest("x", v1.MediaTypeImageManifest, manifestOf(h.blob(v1.MediaTypeImageConfig, configOf("x", diff)), l))
	stop := make(chan struct{})
	defer close(stop)
	drip := func(w http.ResponseWriter, r *http.Request, every time.Duration) {
		w.WriteHeader(http.StatusOK)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			_, err := w.Write([]byte("x"))
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-stop:
				return
			case <-tick.C:
			}
			if err != nil {
				return
			}
		}
	}
	isLayer := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, l.Digest.String()) }
	for name, override := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"no header": func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-r.Context().Done():
			case <-stop:
			}
			return true
		},
		"silent body": func(w http.ResponseWriter, r *http.Request) bool {
			if isLayer(r) {
				drip(w, r, time.Hour)
			}
			return isLayer(r)
		},
		"crawling body": func(w http.ResponseWriter, r *http.Request) bool {
			if isLayer(r) {
				drip(w, r, 50*time.Millisecond)
			}
			return isLayer(r)
		},
		"endless manifest": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				return true // without a digest, the content is read to compute it
			}
			for block := make([]byte, 64<<10); ; {
				if _, err := w.Write(block); err != nil {
					return true
				}
			}
		},
		"redirects": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
			return true
		},
		"always unauthorized": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/token" {
				fmt.Fprint(w, `{"token":"x"}`)
				return true
			}
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
		"endless token": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/token" {
				fmt.Fprint(w, `{"token":"`)
				for block := bytes.Repeat([]byte("x"), 64<<10); ; {
					if _, err := w.Write(block); err != nil {
						return true
					}
				}
			}
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
	} {
		h.mu.Lock()
		h.override, h.asked = override, nil
		h.mu.Unlock()
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := r.Images().Pull(ctx, h.ref("x"), []runtime.Auth{{Username: "u", Password: "p"}}, runtime.PullObserver{})
		require.Error(t, err, name)
		require.NoError(t, ctx.Err(), name)
		cancel()
		goruntime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20), name)
		h.mu.Lock()
		require.Less(t, len(h.asked), 40, name)
		h.mu.Unlock()
	}
}

// A registry's credentials are sent neither to the target of a redirect nor to a token server over plain HTTP.
func TestCredentialsStayWithTheirRegistry(t *testing.T) {
	r := bare(t)
	other := newHostile(t)
	other.override = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "127.0.0.2", 1)
	h := newHostile(t)
	auth := []runtime.Auth{{Username: "user", Password: "secret"}}
	pull := func(override func(w http.ResponseWriter, r *http.Request) bool) error {
		h.mu.Lock()
		h.override = override
		h.mu.Unlock()
		_, err := r.Images().Pull(context.Background(), h.ref("x"), auth, runtime.PullObserver{})
		return err
	}
	for name, override := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"redirected before it asks": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		},
		"redirected after it asked": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Authorization") != "" {
				http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return true
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
		"a token server that redirects": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/token" {
				http.Redirect(w, r, other.URL+"/token", http.StatusTemporaryRedirect)
				return true
			}
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
		"a token server by a name that holds a login": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate",
				fmt.Sprintf(`Bearer realm="http://a:b@%s/token"`, strings.TrimPrefix(elsewhere, "http://")))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
	} {
		require.Error(t, pull(override), name)
		other.mu.Lock()
		for _, got := range other.asked {
			require.Empty(t, got.Header.Get("Authorization"), "%s: %s %s", name, got.Method, got.URL)
			require.NotEqual(t, http.MethodPost, got.Method, name)
		}
		other.mu.Unlock()
	}
	a := authorizer{scheme: "https", host: "registry.example.com"}
	for realm, want := range map[string]bool{
		"https://auth.example.com/token": true, "http://auth.example.com/token": false, "http://127.0.0.1/token": false,
		"ftp://x/": false, "https:///x": false, "": false,
	} {
		u, err := httptest.NewRequest(http.MethodGet, "/", nil).URL.Parse(realm)
		require.NoError(t, err)
		require.Equal(t, want, a.trusts(u), realm)
	}
}

// An archive's limits are checked before it is imported.
func TestHostileArchives(t *testing.T) {
	r := bare(t)
	for name, write := range map[string]func(w *tar.Writer){
		"manifest": func(w *tar.Writer) {
			require.NoError(t, w.WriteHeader(&tar.Header{Name: "manifest.json", Size: maxManifest + 1, Mode: 0o644}))
			_, _ = io.CopyN(w, zeroReader{}, maxManifest+1)
		},
		"files": func(w *tar.Writer) {
			for i := range maxFiles + 1 {
				require.NoError(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeSymlink, Linkname: "x"}))
			}
		},
	} {
		packed, _ := layerOf(t, write)
		_, err := r.Images().Load(context.Background(), bytes.NewReader(packed))
		require.ErrorIs(t, err, runtime.ErrRefused, name)
	}
	r.engine.reserve = func(capacity int64) int64 { return capacity }
	f, err := os.Open(archives + "/busybox.tar")
	require.NoError(t, err)
	defer f.Close()
	_, err = r.Images().Load(context.Background(), f)
	require.ErrorIs(t, err, runtime.ErrRefused)
	require.Zero(t, size(t, r.config.DataDir+"/content"))
}

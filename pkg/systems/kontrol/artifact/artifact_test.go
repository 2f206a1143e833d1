package artifact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func registryHandler() http.Handler { return registry.New(registry.Logger(log.New(io.Discard, "", 0))) }

var files = []bundle.File{{Name: "a.yaml", Data: []byte("a: 1\n")}, {Name: "sub/b.yaml", Data: []byte("b: 1\n")}}

// TestPushAndFetch fetches pushed artifacts by tag and digest, completely and by folder. Equal files make equal
// artifacts.
func TestPushAndFetch(t *testing.T) {
	ref := serve(t, registryHandler()) + "/shop/web"
	digest, err := Push(t.Context(), ref+":v1", files, Credentials{})
	require.NoError(t, err)
	again, err := Push(t.Context(), ref+":v1", files, Credentials{})
	require.NoError(t, err)
	require.Equal(t, digest, again)
	for _, r := range []string{ref + ":v1", ref + "@" + digest, ref + ":v1@" + digest} {
		got, has, err := Fetch(t.Context(), r, "", Credentials{})
		require.NoError(t, err, r)
		require.Equal(t, files, got)
		require.Equal(t, digest, has)
		is, err := Resolve(t.Context(), r, Credentials{})
		require.NoError(t, err)
		require.Equal(t, digest, is)
	}
	got, _, err := Fetch(t.Context(), ref+":v1", "sub", Credentials{})
	require.NoError(t, err)
	require.Equal(t, files[1:], got)
	_, _, err = Fetch(t.Context(), ref+":none", "", Credentials{})
	require.ErrorContains(t, err, "there is no artifact "+ref+":none")
	changed, err := Push(t.Context(), ref+":v1", files[:1], Credentials{})
	require.NoError(t, err)
	require.NotEqual(t, digest, changed)
}

// TestCredentials checks that the registry gets the pull secret's credentials and refuses wrong or missing ones.
func TestCredentials(t *testing.T) {
	inner := registryHandler()
	host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	ref := host + "/shop:v1"
	good, err := CredentialsOf(fmt.Appendf(nil, `{"auths":{"https://%s/v2/":{"auth":%q}}}`, host,
		base64.StdEncoding.EncodeToString([]byte("me:secret"))), ref)
	require.NoError(t, err)
	_, err = Push(t.Context(), ref, files, good)
	require.NoError(t, err)
	_, _, err = Fetch(t.Context(), ref, "", good)
	require.NoError(t, err)
	_, _, err = Fetch(t.Context(), ref, "", Credentials{"me", "wrong"})
	require.Error(t, err)
	for want, config := range map[string]string{
		"no credentials for":         `{"auths":{}}`,
		"not a docker configuration": `[]`,
		"cannot be parsed":           `{"auths":{"` + host + `":{"auth":"!"}}}`,
		"larger than":                strings.Repeat(" ", maxConfig+1),
	} {
		_, err := CredentialsOf([]byte(config), ref)
		require.ErrorContains(t, err, want)
	}
}

// TestHostileRegistries checks that false sizes, wrong digests, floods, redirects to other hosts and token servers
// without TLS are refused.
func TestHostileRegistries(t *testing.T) {
	blob := []byte(`a: 1`)
	layer := func(change map[string]any) map[string]any {
		l := map[string]any{"mediaType": "application/yaml", "digest": digest.FromBytes(blob).String(), "size": len(blob)}
		for k, v := range change {
			l[k] = v
		}
		return l
	}
	manifest := func(layers ...any) []byte {
		raw, err := json.Marshal(map[string]any{
			"schemaVersion": 2,
			"mediaType":     "application/vnd.oci.image.manifest.v1+json",
			"config":        layer(nil),
			"layers":        layers,
		})
		require.NoError(t, err)
		return raw
	}
	many := make([]any, maxLayers+1)
	for i := range many {
		many[i] = layer(nil)
	}
	for name, c := range map[string]struct {
		manifest []byte
		blob     func(w http.ResponseWriter)
		want     string
	}{
		"a huge layer":    {manifest(layer(map[string]any{"size": int64(1) << 60})), nil, "are allowed"},
		"a negative size": {manifest(layer(map[string]any{"size": -1})), nil, "are allowed"},
		"another digest": {
			manifest(layer(nil)), func(w http.ResponseWriter) { _, _ = w.Write([]byte("b: 2")) }, "the content has the digest",
		},
		"endless": {
			manifest(layer(map[string]any{"size": 4})), func(w http.ResponseWriter) { _, _ = io.CopyN(w, endless{}, 64<<20) },
			"",
		},
		"an unknown type": {
			manifest(layer(map[string]any{"mediaType": "application/x"})), nil, "tar, tar+gzip, yaml and json are read",
		},
		"many layers":      {manifest(many...), nil, "more than 32 layers"},
		"no layers":        {manifest(), nil, "not a manifest with layers"},
		"no manifest":      {[]byte(`"x"`), nil, ""},
		"a large manifest": {append(manifest(layer(nil)), make([]byte, maxManifest)...), nil, ""},
		"an evil digest":   {manifest(layer(map[string]any{"digest": "../../etc"})), nil, ""},
		"no archive in tar": {
			manifest(layer(map[string]any{"mediaType": "application/x.tar+gzip"})),
			func(w http.ResponseWriter) { _, _ = w.Write(blob) }, "the archive cannot be read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.Contains(r.URL.Path, "/manifests/"):
					w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
					w.Header().Set("Docker-Content-Digest", digest.FromBytes(c.manifest).String())
					w.Header().Set("Content-Length", fmt.Sprint(len(c.manifest)))
					if r.Method != http.MethodHead {
						_, _ = w.Write(c.manifest)
					}
				case strings.Contains(r.URL.Path, "/blobs/") && c.blob != nil:
					c.blob(w)
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			_, _, err := Fetch(t.Context(), host+"/shop:v1", "", Credentials{})
			require.Error(t, err)
			require.ErrorContains(t, err, c.want)
		})
	}
	tokens := serve(t,
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Error("credentials were sent: ", r.URL) }))
	host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate",
			`Bearer realm="http://`+strings.Replace(tokens, "127.0.0.1", "127.0.0.2", 1)+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	_, _, err := Fetch(t.Context(), host+"/shop:v1", "", Credentials{"me", "secret"})
	require.ErrorContains(t, err, "not an https URL")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

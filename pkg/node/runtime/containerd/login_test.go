package containerd

import (
	"archive/tar"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Registries with both kinds of login, and with blobs on another host, work.
func TestPullWithALogin(t *testing.T) {
	for name, challenge := range map[string]string{
		"basic": `Basic realm="x"`, "bearer": `Bearer realm="http://%s/token",service="x"`,
	} {
		t.Run(name, func(t *testing.T) {
			r := bare(t)
			store, h := newHostile(t), newHostile(t)
			layer, diff := layerOf(t, func(w *tar.Writer) {
				require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Mode: 0o755}))
			})
			h.manifest("x", v1.MediaTypeImageManifest,
				manifestOf(h.blob(v1.MediaTypeImageConfig, configOf("x", diff)), h.blob(v1.MediaTypeImageLayerGzip, layer)))
			store.files = h.files
			h.override = func(w http.ResponseWriter, r *http.Request) bool {
				user, password, _ := r.BasicAuth()
				right := user == "user" && password == "secret"
				if r.URL.Path == "/token" {
					if r.Method == http.MethodPost {
						right = r.FormValue("username") == "user" && r.FormValue("password") == "secret"
					}
					if right {
						fmt.Fprint(w, `{"access_token":"ticket","token":"ticket"}`)
						return true
					}
				}
				if name == "bearer" {
					right = r.Header.Get("Authorization") == "Bearer ticket"
				}
				if !right {
					header := challenge
					if strings.Contains(header, "%s") {
						header = fmt.Sprintf(header, r.Host)
					}
					w.Header().Set("WWW-Authenticate", header)
					w.WriteHeader(http.StatusUnauthorized)
					return true
				}
				if strings.Contains(r.URL.Path, "/blobs/") {
					http.Redirect(w, r, store.URL+r.URL.Path, http.StatusTemporaryRedirect)
					return true
				}
				return false
			}
			for _, wrong := range [][]runtime.Auth{nil, {{}}, {{Username: "user", Password: "wrong"}}} {
				_, err := r.Images().Pull(context.Background(), h.ref("x"), wrong, runtime.PullObserver{})
				require.Error(t, err)
			}
			_, err := r.Images().Pull(context.Background(), h.ref("x"),
				[]runtime.Auth{{Username: "user", Password: "old"}, {Username: "user", Password: "secret"}}, runtime.PullObserver{})
			require.NoError(t, err)
			require.NotEmpty(t, store.asked)
			for _, got := range store.asked {
				require.Empty(t, got.Header.Get("Authorization"))
			}
		})
	}
}

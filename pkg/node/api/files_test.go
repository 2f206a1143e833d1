package api

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestHostLogsStayInTheirFolder(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "syslog"), []byte("a line\nanother\n"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "pods <b>"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "folder")))
	require.NoError(t, os.Symlink("syslog", filepath.Join(dir, "messages")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	s := &Server{c: Config{HostLogDir: dir}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /logs/{path...}", s.hostLogs)
	get := func(path string, headers ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodGet, path, nil)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		return w
	}
	require.Equal(t, "a line\nanother\n", get("/logs/syslog").Body.String())
	require.Equal(t, "a line\nanother\n", get("/logs/messages").Body.String())
	require.Equal(t, "another\n", get("/logs/syslog", "Range", "bytes=7-").Body.String())
	listing := get("/logs/").Body.String()
	require.Contains(t, listing, `<a href="syslog">syslog</a>`)
	require.Contains(t, listing, `<a href="pods%20%3Cb%3E/">pods &lt;b&gt;/</a>`)
	require.Equal(t, "pods%20%3Cb%3E/", get("/logs/pods%20%3Cb%3E").Header().Get("Location"))
	for _, path := range []string{
		"/logs/link", "/logs/folder/secret", "/logs/folder/", "/logs/..%2fsecret", "/logs/%2e%2e/secret", "/logs/fifo",
		"/logs/none",
	} {
		w := get(path)
		require.NotEqual(t, http.StatusOK, w.Code, path)
		require.NotContains(t, w.Body.String(), "secret", path)
	}
}

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// planted are secrets that the tests put into the sources of a bundle.
var planted = []string{
	"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl", "coracle2.c2hhMjU2.abcde.c3VwZXJzZWNyZXQ", "hunter2hunter2",
	"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "s3cr3t-of-the-annotation", "s3cr3t-of-the-header", "s3cr3t-of-the-environment",
	"s3cr3t-argument", "pw-in-url",
}

const key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"

func pod() corev1.Pod {
	probe := &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Auth", Value: "s3cr3t-of-the-header"}}},
		},
	}
	c := corev1.Container{
		Name: "main", Image: "busybox", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "s3cr3t-of-the-environment"}},
		LivenessProbe: probe,
		Args:          []string{"--db-password=s3cr3t-argument", "--verbose=true", "--dsn=mysql://root:pw-in-url@db/x"},
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "d",
			Name:        "web",
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: `{"env":"s3cr3t-of-the-annotation"}`},
		},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{c}, Containers: []corev1.Container{c},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Env: c.Env}},
			}},
	}
}

type process struct{ socket.Backend }

func (process) Status(context.Context) socket.Status {
	return socket.Status{Running: true, Node: "here", Warnings: []string{"token: hunter2hunter2"}}
}

func (process) Health(context.Context) []socket.Health {
	return []socket.Health{{Component: "store", State: socket.Unhealthy, Summary: "full"}}
}

func (process) Debug() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "{\"path\": %q, \"header\": \"Bearer %s\", \"join\": %q}\n", r.URL.Path, planted[0], planted[1])
	})
}

func entries(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(raw))
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, int64(0o600), h.Mode)
		require.False(t, h.ModTime.After(time.Now()), "tar warns about files from the future")
		files[strings.TrimPrefix(h.Name, "coracle-support/")] = string(data)
	}
}

func config(t *testing.T) Config {
	dir := t.TempDir()
	write := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	return Config{
		DataDir: filepath.Join(dir, "data"), RunDir: dir, Kubeconfig: filepath.Join(dir, "data", "kubeconfig"),
		Options: map[string]string{"listen": ":6443"},
		Version: write(`{"coracle":"v1"}`), Rules: write("table coracle\n"), Certificates: write("NAME ENDS\n"),
		Status: write("Running\n"),
	}
}

func TestABundleHasNoSecrets(t *testing.T) {
	c := config(t)
	require.NoError(t, os.MkdirAll(c.DataDir, 0o700))
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/nodes":
			_ = json.NewEncoder(w).Encode(corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "here"}}}})
		case "/api/v1/pods":
			_ = json.NewEncoder(w).Encode(corev1.PodList{Items: []corev1.Pod{pod()}})
		case "/api/v1/events":
			_ = json.NewEncoder(w).Encode(corev1.EventList{
				Items: []corev1.Event{{Message: "login failed, password=hunter2hunter2"}},
			})
		default:
			t.Errorf("%s was asked for", r.URL.Path)
		}
	}))
	defer api.Close()
	require.NoError(t,
		os.WriteFile(c.Kubeconfig,
			[]byte("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \""+api.URL+
				"\"}}]\n"+
				"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {username: a, password: "+
				"hunter2hunter2}}]\n"), 0o600))
	log := strings.Repeat("level=INFO msg=old\n", mostLog/19+1) + "level=WARN msg=\"could not join\" token=" + planted[1] +
		" jwt=" + planted[0] + "\n" + key + "level=INFO msg=last\n"
	require.NoError(t, os.WriteFile(filepath.Join(c.DataDir, logFile), []byte(log), 0o600))

	server := socket.NewServer(c.RunDir, process{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	<-server.Ready()
	defer func() { cancel(); require.NoError(t, <-ended) }()

	var out, progress bytes.Buffer
	require.NoError(t, Write(t.Context(), c, &out, &progress))
	files := entries(t, out.Bytes())
	for _, name := range []string{
		"README.txt", "version.json", "certificates.txt", "status.txt", "nftables.txt", "status.json", "options.json",
		"inspect/cache.json", "inspect/reconcilers.json",
		"inspect/fairness.json", "inspect/store.json", "metrics/control-plane.txt", "metrics/node.txt", "machine.txt",
		"mounts.txt", "cluster/nodes.json", "cluster/pods.json",
		"cluster/events.json", "log.txt", "goroutines.txt",
	} {
		require.NotEmpty(t, files[name], name)
	}
	for name, text := range files {
		for _, secret := range planted {
			require.NotContains(t, text, secret, name)
		}
	}
	require.Contains(t, files["cluster/pods.json"], "--verbose=true")
	require.Contains(t, files["log.txt"], "msg=last")
	require.Less(t, len(files["log.txt"]), mostLog+1)
	require.True(t, strings.HasPrefix(files["log.txt"], "level="), "it begins with a whole line")
	require.Contains(t, files["status.json"], `"unhealthy"`)
	require.Contains(t, files["goroutines.txt"], "goroutine ")
}

// An agent under systemd has no control plane and no log file, but a journal.
func TestABundleOfAnAgentUnderSystemd(t *testing.T) {
	c := config(t)
	require.NoError(t, os.MkdirAll(c.DataDir, 0o700))
	bin := t.TempDir()
	script := "#!/bin/sh\necho \"$*\" password=hunter2hunter2\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "journalctl"), []byte(script),
		0o700))
	t.Setenv("PATH", bin)
	server := socket.NewServer(c.RunDir, agent{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	<-server.Ready()
	defer func() { cancel(); require.NoError(t, <-ended) }()
	var out, progress bytes.Buffer
	require.NoError(t, Write(t.Context(), c, &out, &progress))
	files := entries(t, out.Bytes())
	require.Contains(t, files["journal.txt"], "--unit=coracle-agent")
	require.NotContains(t, files["journal.txt"], "hunter2hunter2")
	require.Contains(t, files["disks.txt"], c.DataDir+": ")
	require.Contains(t, files["metrics/node.txt"], "path")
	require.NotContains(t, files, "inspect/store.json")
	require.NotContains(t, files, "log.txt")
	for _, name := range []string{"log.txt", "inspect", "metrics"} {
		require.NotContains(t, progress.String(), name)
	}
}

// agent is a process without a control plane.
type agent struct{ process }

func (a agent) Debug() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/debug/coracle/options", a.process.Debug())
	mux.Handle("/debug/coracle/metrics/node", a.process.Debug())
	return mux
}

func TestABundleOfAMachineOnWhichNothingRuns(t *testing.T) {
	t.Setenv("PATH", "")
	var out, progress bytes.Buffer
	require.NoError(t, Write(t.Context(), config(t), &out, &progress))
	files := entries(t, out.Bytes())
	for _, name := range []string{"version.json", "machine.txt", "mounts.txt", "options.json"} {
		require.NotEmpty(t, files[name], name)
	}
	for _, missing := range []string{
		"status.json", "inspect/cache.json", "metrics/node.txt", "goroutines.txt", "log.txt", "cluster",
	} {
		require.Contains(t, files["README.txt"], "- "+missing+": ")
	}
	require.Contains(t, progress.String(), "missing: cluster\n")
	require.Contains(t, files["options.json"], ":6443")
}

func TestABundleOfAStoppedClusterSaysWhatItHasInOneLine(t *testing.T) {
	t.Setenv("PATH", "")
	server := httptest.NewServer(nil)
	server.Close() // nothing listens there
	c := config(t)
	c.Status = func(io.Writer) error { return socket.ErrNotRunning }
	require.NoError(t, os.MkdirAll(c.DataDir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(c.DataDir, logFile), []byte("stopped\n"), 0o600))
	require.NoError(t, os.WriteFile(c.Kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",`+
		`"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"`+server.URL+
		`"}}]}`), 0o600))
	var out, progress bytes.Buffer
	require.NoError(t, Write(t.Context(), c, &out, &progress))
	require.Equal(t, "coracle is not running here; the archive has version.json, certificates.txt, options.json, "+
		"machine.txt, mounts.txt, disks.txt, nftables.txt, log.txt\n", progress.String())
	require.Contains(t, entries(t, out.Bytes())["README.txt"], "- cluster/pods.json: ")
}

func TestABundleIsBounded(t *testing.T) {
	c := config(t)
	huge := bytes.Repeat([]byte("x"), 2*mostEntry)
	c.Version = func(w io.Writer) error { _, err := w.Write(huge); return err }
	var out bytes.Buffer
	require.NoError(t, Write(t.Context(), c, &out, io.Discard))
	require.Less(t, len(entries(t, out.Bytes())["version.json"]), mostEntry+100)

	b := &bundle{tar: tar.NewWriter(io.Discard), left: 100}
	b.add("a", make([]byte, 60))
	b.add("b", make([]byte, 60))
	require.Equal(t, []string{"a"}, b.written)
	require.Equal(t, []missing{{name: "b", reason: "the archive is full"}}, b.missing)
	require.Error(t, Write(t.Context(), config(t), failing{}, io.Discard))
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

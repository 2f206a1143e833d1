package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asMain is set in the environment of a test binary that runs as coracle.
const asMain = "CORACLE_TEST_MAIN"

func TestOverriddenKubeconfig(t *testing.T) {
	for variable, want := range map[string]string{
		"": "", "/home/me/.kube/config": "", "/a:/home/me/.kube/config": "",
		"/a:/b": "which is not read while KUBECONFIG=/a:/b: unset it, or add /home/me/.kube/config to it",
	} {
		require.Equal(t, want, strings.TrimSpace(overridden(variable, "/home/me/.kube/config")))
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// coracle returns a command that runs coracle with args and an empty home directory.
func coracle(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, os.Args[0], args...)
	home := t.TempDir()
	c.Env = []string{
		asMain + "=1", "HOME=" + home, "PATH=" + os.Getenv("PATH"), "CORACLE_DATA_DIR=" + filepath.Join(home, "none"),
	}
	return c
}

// TestCtlDiesOfSignals checks that signals end ctl as they end kubectl, in every kind of wait.
func TestCtlDiesOfSignals(t *testing.T) {
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	ways := map[string]func(t *testing.T) *exec.Cmd{ // each returns once the command waits
		"watch": func(t *testing.T) *exec.Cmd {
			c := coracle(t, "ctl", "--server", server.URL, "get", "--raw", "/api/v1/pods?watch=1")
			require.NoError(t, c.Start())
			<-asked
			return c
		},
		"standard input": func(t *testing.T) *exec.Cmd {
			c := coracle(t, "ctl", "--server", server.URL, "apply", "--validate=false", "-f", "-")
			in, err := c.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, c.Start())
			_, err = io.WriteString(in, strings.Repeat("#", 1<<20)) // more than a pipe buffers, so the command reads
			require.NoError(t, err)
			return c
		},
		"proxy": func(t *testing.T) *exec.Cmd {
			c := coracle(t, "ctl", "--server", server.URL, "proxy", "--port=0")
			out, err := c.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, c.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, "Starting to serve")
			return c
		},
	}
	for name, start := range ways {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(name+" "+s.String(), func(t *testing.T) {
				c := start(t)
				require.NoError(t, c.Process.Signal(s))
				require.Error(t, c.Wait())
				status := c.ProcessState.Sys().(syscall.WaitStatus)
				require.True(t, status.Signaled(), "exit code %d", status.ExitStatus())
				require.Equal(t, s, status.Signal())
			})
		}
	}
}

// TestKuberc checks default flags, and aliases with arguments, from kuberc.
func TestKuberc(t *testing.T) {
	paths := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Status"}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kuberc")
	require.NoError(t, os.WriteFile(file, []byte(`
apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
aliases:
- name: raw
  command: get
  appendArgs: [--raw, /from-kuberc]
defaults:
- command: create namespace
  options: [{name: dry-run, default: client}, {name: output, default: name}]
`), 0o600))
	out, err := coracle(t, "ctl", "raw", "--kuberc="+file, "--server="+server.URL).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "/from-kuberc", <-paths)
	c := coracle(t, "ctl", "create", "namespace", "spring", "--server="+server.URL)
	c.Env = append(c.Env, "KUBERC="+file)
	out, err = c.Output() // under the race detector a library logs to standard error
	require.NoError(t, err)
	require.Equal(t, "namespace/spring\n", string(out))
}

// TestPlugin checks that KUBECTL_PATH leads a plugin to kubectl.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t,
		os.WriteFile(filepath.Join(dir, "kubectl-hoist"),
			[]byte("#!/bin/sh\necho \"$1\"\nexec \"$KUBECTL_PATH\" version --client -o yaml\n"), 0o700))
	run := func(c *exec.Cmd) {
		t.Helper()
		c.Env = append(c.Env, "PATH="+dir+":"+os.Getenv("PATH"), "KUBECTL_PATH=/nowhere")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.True(t, strings.HasPrefix(string(out), "sails\n"), "%s", out)
		require.Contains(t, string(out), "clientVersion")
	}
	c := coracle(t, "ctl", "hoist", "sails")
	run(c)
	again := coracle(t, "ctl", "hoist", "sails")
	again.Env = c.Env
	run(again)
	self, err := os.Executable()
	require.NoError(t, err)
	link := filepath.Join(dir, "kubectl")
	require.NoError(t, os.Symlink(self, link))
	c = coracle(t, "hoist", "sails")
	c.Path, c.Args[0] = link, "kubectl"
	run(c)
}

// TestCtlSpeaksTheUsersLanguage checks that kubectl's translations are used.
func TestCtlSpeaksTheUsersLanguage(t *testing.T) {
	help := func(lang string) string {
		t.Helper()
		c := coracle(t, "ctl", "--help")
		c.Env = append(c.Env, "LANG="+lang)
		out, err := c.Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Contains(t, help("C.UTF-8"), "Display one or many resources")
	require.Contains(t, help("de_DE.UTF-8"), "Zeige eine oder mehrere Resourcen")
}

// TestWithoutACluster checks that, without a cluster, each command of kubectl says how to start one.
func TestWithoutACluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.yaml")
	object := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`
	require.NoError(t, os.WriteFile(file, []byte(object), 0o600))
	for _, line := range []string{
		"ctl get pods", "get pods", "apply -f " + file, "ps", "ctl create -f " + file, "ctl delete pod a",
		"ctl -n b get pods",
		"ctl logs a", "ctl run a --image=b", "ctl expose pod a --port=1", "create ns a", "ctl --request-timeout=9s top node",
	} {
		args := strings.Fields(line)
		out, err := coracle(t, args...).CombinedOutput()
		require.Error(t, err)
		require.Equal(t, "Error: there is no cluster to talk to: start one with `coracle start`, or set KUBECONFIG\n",
			string(out), args)
	}
	out, err := coracle(t, "ctl", "version").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "Client Version: ")
	require.Contains(t, string(out), "Unable to connect to the server: there is no cluster to talk to: start one with")
	out, err = coracle(t, "ctl", "create", "namespace", "n", "--dry-run=client", "-o", "name").Output()
	require.NoError(t, err)
	require.Equal(t, "namespace/n\n", string(out))
	out, err = coracle(t, "get", "--help").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "kubectl get")
	for _, verb := range kubectlVerbs {
		for _, c := range root().Commands() {
			require.NotEqual(t, verb, c.Name())
		}
	}
}

// TestKubectlWithoutCtl checks that ctl is inserted before kubectl's commands, also in shell completion.
func TestKubectlWithoutCtl(t *testing.T) {
	for args, want := range map[string]string{
		"coracle get pods":            "coracle ctl get pods",
		"coracle create cluster":      "coracle create cluster", // kind's command, which run answers
		"coracle create deployment a": "coracle ctl create deployment a",
		"coracle __complete get po":   "coracle __complete ctl get po",
		"coracle __complete get":      "coracle __complete get", // completes the name of the command itself
		"coracle __complete run a":    "coracle __complete run a",
		"/usr/bin/kubectl version":    "/usr/bin/kubectl ctl version",
		"/usr/bin/kubectl __complete": "/usr/bin/kubectl ctl __complete",
	} {
		require.Equal(t, strings.Fields(want), withCtl(strings.Fields(args)))
	}
}

package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/remote"
	"github.com/coracle-dev/coracle/test/host"
)

const farmParts = "buildbarnstorage/storage buildbarnscheduler/scheduler buildbarnfrontend/frontend " +
	"buildbarnworker/worker"

// TestBuildbarnFarm runs actions on a farm of real Buildbarn components while pods are killed, workers come and go,
// and the configuration changes.
func TestBuildbarnFarm(t *testing.T) {
	buildbarnImages(t)
	h := host.New(t)
	h.Start()
	browser := loadBuildbarn(t, h)
	f := &buildFarm{Host: h, t: t}
	example := filepath.Join(host.Root(t), "manifests/examples/buildbarn")
	h.Ctl("create namespace builds")

	began := time.Now()
	h.Ctl("apply -n builds -f " + example + "/config.yaml -f " + example + "/parts.yaml")
	f.connect()
	steps := f.smoke()
	t.Logf("five objects to a farm whose first action has completed: %.1f s", time.Since(began).Seconds())
	require.Equal(t, "cache hit", steps[len(steps)-1].Detail)
	h.Ctl("wait -n builds " + farmParts + " --for=condition=Ready --timeout=120s")

	if browser {
		h.Ctl("apply -n builds -f " + example + "/browser.yaml")
		h.Ctl("wait -n builds buildbarnbrowser/browser --for=condition=Ready --timeout=120s")
	} else {
		t.Log("bb-browser is not tested: its image is missing")
	}

	t.Run("invalid requests are refused with a remedy", func(t *testing.T) {
		require.Contains(t, h.Fails("buildbarn", "smoke", "-n", "builds", "--platform", "OS=plan9", "--timeout", "3s"),
			"No worker serves this instance and platform {OS=plan9}")
		require.Contains(t, h.Fails("buildbarn", "smoke", "-n", "builds", "--tls"),
			"The frontend does not use TLS as requested")
		require.Contains(t, h.Fails("buildbarn", "smoke"), "namespace default has no service with port 8980")
	})
	t.Run("storage is killed during an action", func(t *testing.T) {
		f.hold()
		wait := f.action()
		// The old pod must end before its successor starts, because two programs must not write into the same
		// files. A forced deletion does not guarantee that.
		h.Ctl("delete pod -n builds storage-0 --grace-period=1")
		f.release()
		wait()
		f.smoke()
	})
	t.Run("workers are scaled up and down", func(t *testing.T) {
		h.Ctl("scale -n builds buildbarnworker/worker --replicas=3")
		h.Ctl("wait -n builds buildbarnworker/worker --for=jsonpath={.status.readyReplicas}=3 --timeout=120s")
		f.hold()
		var waits []func()
		for range 12 { // each of the three workers executes four concurrently
			waits = append(waits, f.action())
		}
		f.release()
		for _, wait := range waits {
			wait()
		}
		h.Ctl("scale -n builds buildbarnworker/worker --replicas=1")
		h.Ctl("wait -n builds buildbarnworker/worker --for=jsonpath={.status.replicas}=1 --timeout=120s")
		f.smoke()
	})
	t.Run("a worker is killed during an action", func(t *testing.T) {
		f.hold()
		wait := f.action()
		old := "pod/" + f.workers()[0]
		// After a forced deletion the old program could continue the action until its drain timeout.
		h.Ctl("delete -n builds " + old + " --grace-period=1")
		require.Eventually(t, func() bool {
			now := h.Ctl(`get pods -n builds -l app=worker -o jsonpath={.items[*].metadata.name}{.items[*].status.conditions[?(@.type=="Ready")].status}`)
			return strings.HasSuffix(now, "True") && !strings.Contains(now, strings.TrimPrefix(old, "pod/"))
		}, host.Patience, 100*time.Millisecond)
		f.release()
		wait() // the client retries
	})
	t.Run("the configuration changes under load", func(t *testing.T) {
		stop := f.load()
		before := f.pods()
		h.Ctl(`patch -n builds configmap buildbarn-config -p {"data":{"scheduler.jsonnet":"{"}}`)
		h.Ctl("wait -n builds buildbarnscheduler/scheduler --for=condition=ConfigValid=false --timeout=120s")
		f.smoke()
		require.ElementsMatch(t, before, f.pods(), "no pod gets an invalid configuration")
		h.Ctl("apply -n builds -f " + example + "/config.yaml")
		h.Ctl("wait -n builds buildbarnscheduler/scheduler --for=condition=ConfigValid --timeout=120s")
		require.ElementsMatch(t, before, f.pods(), "an unchanged configuration replaces no pod")
		text, err := os.ReadFile(example + "/config.yaml")
		require.NoError(t, err)
		// This configuration has correct brackets and imports. Only the program, or a check that knows its fields,
		// refuses it.
		h.Pipe(strings.Replace(string(text), "oldBlocks: 8", "oldBlock: 8", 1), "ctl", "apply", "-n", "builds", "-f", "-")
		h.Ctl("wait -n builds buildbarnstorage/storage --for=condition=ConfigValid=false --timeout=120s")
		require.Contains(t,
			h.Ctl(`get -n builds buildbarnstorage/storage -o jsonpath={.status.conditions[?(@.type=="ConfigValid")].message}`),
			"storage.jsonnet:7: actionCache.backend.local.oldBlock: there is no such field; is oldBlocks meant?")
		require.ElementsMatch(t, before, f.pods())
		changed := strings.Replace(string(text), "platformQueueWithNoWorkersTimeout: '900s'",
			"platformQueueWithNoWorkersTimeout: '901s'", 1)
		require.NotEqual(t, string(text), changed)
		h.Pipe(changed, "ctl", "apply", "-n", "builds", "-f", "-")
		scheduler := func() string {
			return strings.TrimSpace(h.Ctl("get pods -n builds -l app=scheduler -o jsonpath={.items[*].metadata.name}"))
		}
		old := scheduler()
		require.Eventually(t, func() bool {
			now := scheduler()
			return now != "" && !strings.Contains(now, old)
		}, host.Patience, 100*time.Millisecond, "a valid one does")
		require.Positive(t, stop(), "actions succeed during the change")
		f.smoke()
	})
}

// TestBuildbarnTLS checks that the parts of a farm with TLS execute actions together, and that each part refuses
// clients without certificate and token.
func TestBuildbarnTLS(t *testing.T) {
	buildbarnImages(t)
	h := host.New(t)
	h.Start()
	loadBuildbarn(t, h)
	f := &buildFarm{Host: h, t: t}
	h.Ctl("create namespace builds")
	h.Pipe(`apiVersion: buildbarn.io/v1alpha1
kind: Buildbarn
metadata: {name: farm, namespace: builds}
spec:
  storage: {casSize: 1Gi, acSize: 128Mi, claimPolicy: Delete}
  tls: {}
  workers: [{name: shell, runnerImage: "busybox:1.36", scale: {max: 3, idleSeconds: 1, intervalSeconds: 1}}]
`, "ctl", "apply", "-f", "-")
	h.Ctl("wait -n builds buildbarn/farm --for=condition=Ready --timeout=120s")
	steps := f.smoke()
	require.Equal(t, "cache hit", steps[len(steps)-1].Detail)
	require.Contains(t, h.Run("buildbarn", "status", "-n", "builds"), "hit rate")

	address := strings.TrimSpace(h.Ctl("get service farm-frontend -n builds -o "+
		"jsonpath={.status.loadBalancer.ingress[0].ip}")) + ":8980"
	dir := t.TempDir()
	file := func(key string) string {
		text, err := base64.StdEncoding.DecodeString(h.Ctl("get secret farm-client-tls -n builds -o jsonpath={.data." +
			strings.ReplaceAll(key, ".", `\.`) + "}"))
		require.NoError(t, err)
		path := filepath.Join(dir, key)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	ca, cert, key, token := file("ca.crt"), file("tls.crt"), file("tls.key"), file("token")
	smoke := []string{"buildbarn", "smoke", "--frontend", address, "--server-name", "farm-frontend.builds", "--ca", ca}
	h.Run(append(smoke, "--cert", cert, "--key", key)...)
	h.Run(append(smoke, "--token-file", token)...)
	require.Contains(t, h.Fails(smoke...), "Unauthenticated")
	h.Fails("buildbarn", "smoke", "--frontend", address)

	// A client's certificate gives access only to the frontend, not to storage behind it.
	storage := strings.TrimSpace(h.Ctl("get pod farm-storage-0 -n builds -o jsonpath={.status.podIP}")) + ":8981"
	require.Contains(t,
		h.Fails("buildbarn", "smoke", "--frontend", storage, "--server-name", "farm-storage-0.farm-storage", "--ca", ca,
			"--cert", cert, "--key", key), "Unauthenticated")

	t.Run("scaling down ends idle workers first", func(t *testing.T) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		pool := x509.NewCertPool()
		text, err := os.ReadFile(ca)
		require.NoError(t, err)
		require.True(t, pool.AppendCertsFromPEM(text))
		f.tls = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "farm-frontend.builds"}
		f.connect()
		ended := make(chan struct{}, 3)
		for range 3 {
			wait := f.action()
			go func() { defer func() { ended <- struct{}{} }(); wait() }()
		}
		pods := f.workers()
		require.Len(t, pods, 3)
		for _, pod := range pods[:2] {
			h.Ctl("exec -n builds " + pod + " -c runner -- touch /worker/released")
			<-ended
		}
		// A ReplicaSet by itself would end the youngest pod, which is the busy one.
		h.Ctl("wait -n builds buildbarnworker/farm-worker-shell --for=jsonpath={.status.replicas}=1 --timeout=120s")
		stays := h.Ctl("get pod -n builds " + pods[2] + " -o jsonpath={.metadata.name}{.metadata.deletionTimestamp}")
		require.Equal(t, pods[2], stays, "the busy worker must not be terminating")
		f.release()
		<-ended
		h.Ctl("wait -n builds buildbarnworker/farm-worker-shell --for=jsonpath={.status.replicas}=0 --timeout=120s")
	})

	// With a new authority all parts restart and trust each other.
	h.Ctl("delete secret farm-ca -n builds")
	require.Eventually(t, func() bool {
		now, err := h.Try("ctl", "get", "secret", "farm-client-tls", "-n", "builds", "-o", `jsonpath={.data.ca\.crt}`)
		old, readErr := os.ReadFile(ca)
		return err == nil && readErr == nil && now != "" && now != base64.StdEncoding.EncodeToString(old)
	}, host.Patience, 100*time.Millisecond)
	f.smoke()
}

// TestBuildbarnManual runs the manual's shell blocks about build farms: a farm from one object, and one from its parts.
func TestBuildbarnManual(t *testing.T) {
	buildbarnImages(t)
	h := host.New(t)
	h.Start()
	loadBuildbarn(t, h)
	page := filepath.Join(host.Root(t), "pkg/systems/buildbarn/manual/howto/build-farm.md")
	script := "set -euo pipefail\n" + strings.Join(blocks(t, page, "farm"), "")
	// The archives may be elsewhere, and are loaded already.
	require.Equal(t, 1, strings.Count(script, "coracle image load "))
	script = strings.Replace(script, "coracle image load ", "true ", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	shell := h.Command(ctx, "bash")
	shell.Dir = host.Root(t)
	shell.Stdin = strings.NewReader(script)
	out, err := shell.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(out), "cache hit"))
	require.Eventually(t, func() bool {
		return strings.TrimSpace(h.Ctl("get pv -o name")) == ""
	}, 5*time.Minute, time.Second, "claims are deleted with their farm, as soon as workers have gone")
}

type buildFarm struct {
	*host.Host
	t      *testing.T
	client *remote.Client
	tls    *tls.Config // of the client; nil without TLS
}

// connect waits until a service has the frontend's address, and creates a client.
func (f *buildFarm) connect() {
	f.t.Helper()
	var address string
	require.Eventually(f.t, func() bool {
		for _, ip := range strings.Fields(f.Ctl(
			`get services -n builds -o jsonpath={range.items[?(@.spec.ports[0].port==8980)]}{.status.loadBalancer.ingress[0].ip}{end}`)) {
			address = ip + ":8980"
		}
		return address != ""
	}, host.Patience, 20*time.Millisecond)
	var err error
	f.client, err = remote.New(remote.Config{Address: address, TLS: f.tls, Dial: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, address string) (conn net.Conn, err error) {
			return f.Dial(ctx, "tcp", address)
		}),
	}})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = f.client.Close() })
}

type smokeStep struct{ Step, Detail, Error string }

// smoke runs coracle buildbarn smoke until it succeeds: the parts of a new farm take seconds to find each other.
func (f *buildFarm) smoke() []smokeStep {
	f.t.Helper()
	var result struct{ Steps []smokeStep }
	deadline := time.Now().Add(host.Patience)
	for {
		out, err := f.Try("buildbarn", "smoke", "-n", "builds", "-o", "json")
		if err == nil {
			require.NoError(f.t, json.Unmarshal([]byte(out), &result), out)
			return result.Steps
		}
		require.True(f.t, time.Now().Before(deadline), "%s", out)
	}
}

// action uploads an action that blocks until release, and returns when it is executing. wait waits for its end.
func (f *buildFarm) action() (wait func()) {
	f.t.Helper()
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	a := remote.Action{
		Arguments:   []string{"/bin/sh", "-c", "until [ -e /worker/released ]; do sleep 0.1; done; echo done > out"},
		Environment: map[string]string{"PATH": "/bin"}, Outputs: []string{"out"}, Salt: salt,
	}
	ended, executing, once := make(chan error, 1), make(chan struct{}), sync.Once{}
	ctx, cancel := context.WithTimeout(f.t.Context(), 4*time.Minute)
	go func() {
		_, err := f.build(ctx, a, func(stage string) {
			if stage == "EXECUTING" {
				once.Do(func() { close(executing) })
			}
		})
		ended <- err
	}()
	select {
	case <-executing:
	case err := <-ended:
		cancel()
		require.NoError(f.t, err, "the action ended before it was released")
	}
	return func() {
		f.t.Helper()
		defer cancel()
		require.NoError(f.t, <-ended)
	}
}

// build uploads and executes an action as a build tool does: it retries while a server is unavailable.
func (f *buildFarm) build(ctx context.Context, a remote.Action, progress func(string)) (*remote.Result, error) {
	digest, blobs, err := a.Blobs()
	if err != nil {
		return nil, err
	}
	for {
		if _, err = f.client.Upload(ctx, blobs); err == nil {
			var result *remote.Result
			if result, err = f.client.Execute(ctx, digest, remote.Execution{Progress: progress}); err == nil {
				if result.ExitCode != 0 {
					return nil, fmt.Errorf("exit code %d: %s", result.ExitCode, result.Stderr.Raw)
				}
				return result, nil
			}
		}
		if status.Code(err) != codes.Unavailable && status.Code(err) != codes.FailedPrecondition || ctx.Err() != nil {
			return nil, err
		}
	}
}

// release lets the actions of all workers end; hold makes later actions block again.
func (f *buildFarm) release() { f.each("touch /worker/released") }
func (f *buildFarm) hold()    { f.each("rm -f /worker/released") }

func (f *buildFarm) each(command string) {
	f.t.Helper()
	for _, pod := range f.workers() {
		f.Ctl("exec -n builds " + pod + " -c runner -- " + command)
	}
}

// workers returns the names of the workers' pods without a deletion timestamp, oldest first; pods of all such pods.
func (f *buildFarm) workers() []string { return f.staying("-l", "app=worker") }
func (f *buildFarm) pods() []string    { return f.staying() }

func (f *buildFarm) staying(selector ...string) (names []string) {
	f.t.Helper()
	for line := range strings.Lines(f.Run(append([]string{
		"ctl", "get", "pods", "-n", "builds", "--sort-by=.metadata.creationTimestamp",
		"-o", `jsonpath={range .items[*]}{.metadata.name}={.metadata.deletionTimestamp}{"\n"}{end}`,
	}, selector...)...)) {
		if name, going, _ := strings.Cut(strings.TrimSpace(line), "="); name != "" && going == "" {
			names = append(names, name)
		}
	}
	return names
}

// load builds one action after the other until stop, which returns how many succeeded. A failed action fails the test.
func (f *buildFarm) load() (stop func() int) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done, n := make(chan error, 1), 0
	go func() {
		for ctx.Err() == nil {
			a := remote.Action{
				Arguments:   []string{"/bin/sh", "-c", "echo done > out"},
				Environment: map[string]string{"PATH": "/bin"},
				Outputs:     []string{"out"},
				Salt:        fmt.Appendf(nil, "%d %d", time.Now().UnixNano(), n),
			}
			if _, err := f.build(ctx, a, nil); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			n++
		}
		done <- nil
	}()
	return func() int {
		f.t.Helper()
		cancel()
		require.NoError(f.t, <-done)
		f.t.Logf("%d actions meanwhile", n)
		return n
	}
}

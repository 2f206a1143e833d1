package containerd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/runtimetest"
)

// archives is the directory of the images that hack/images makes.
var archives string

func TestMain(m *testing.M) {
	if dir := os.Getenv("CORACLE_TEST_DAEMON"); dir != "" {
		daemon(dir)
		return
	}
	code, err := prepare(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func prepare(m *testing.M) (int, error) {
	if os.Geteuid() != 0 {
		return 1, fmt.Errorf("these tests run real containers: run them as root")
	}
	dir, err := os.MkdirTemp("", "coracle-images-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "run", "./hack/images", "-out", dir)
	build.Dir = "../../../.."
	if text, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("hack/images: %w: %s", err, text)
	}
	archives = dir
	before := leftovers()
	code := m.Run()
	for _, root := range cgroupRoots() {
		_ = os.Remove(filepath.Join(root, "coracle-test")) // fails if another run uses it
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			return 1, err
		}
		if after := leftovers(); after != before {
			return 1, fmt.Errorf("left behind: before\n%s\nafter\n%s", before, after)
		}
	}
	return code, nil
}

// leftovers lists what tests of this process may have left on the machine.
func leftovers() string {
	var b strings.Builder
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, testPrefix()) {
			b.WriteString(line)
		}
	}
	for _, root := range cgroupRoots() {
		if dirs, _ := filepath.Glob(filepath.Join(root, "coracle-test", fmt.Sprintf("*-%d-*", os.Getpid()))); len(dirs) > 0 {
			fmt.Fprintln(&b, dirs)
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, proc := range procs {
		if exe, _ := os.Readlink(proc); strings.Contains(exe, testPrefix()) {
			fmt.Fprintln(&b, proc, exe)
		}
	}
	return b.String()
}

func testPrefix() string { return fmt.Sprintf("coracle-rt-%d-", os.Getpid()) }

func testConfig(t testing.TB) Config {
	dir, err := os.MkdirTemp("", testPrefix())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return configIn(dir)
}

func configIn(dir string) Config {
	return Config{
		DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"),
		CgroupRoot: "/coracle-test/" + filepath.Base(dir),
		Log:        slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
}

// open starts a runtime; stop ends it but leaves its containers running.
func open(t testing.TB, c Config) (r *Runtime, stop func()) {
	r, err := New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case <-r.Ready():
	case err := <-done:
		cancel()
		require.NoError(t, err)
	}
	return r, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func load(t testing.TB, r *Runtime, name string) []runtime.Image {
	f, err := os.Open(filepath.Join(archives, name))
	require.NoError(t, err)
	defer f.Close()
	list, err := r.Images().Load(context.Background(), f)
	require.NoError(t, err)
	return list
}

// start opens a runtime with busybox, which is purged at the end of the test.
func start(t testing.TB) *Runtime { return startWith(t, testConfig(t)) }

func startWith(t testing.TB, c Config) *Runtime {
	r, stop := open(t, c)
	t.Cleanup(func() {
		require.NoError(t, r.Purge(context.Background()))
		stop()
	})
	load(t, r, "busybox.tar")
	return r
}

func TestConformance(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) { t.Run("suite", (&runtimetest.Suite{Runtime: r, Real: true}).Run) })
}

func spec(c Config, pod, name string, command ...string) runtime.Spec {
	return runtime.Spec{
		ID: pod + "-" + name, PodUID: pod, Image: "busybox", Command: command, CgroupParent: c.CgroupRoot + "/" + pod,
		LogPath: filepath.Join(filepath.Dir(c.DataDir), "logs", pod, name+".log"), NetNS: "host",
	}
}

// daemon is the main function of the process that TestKill kills.
func daemon(dir string) {
	c := configIn(dir)
	r, err := New(c)
	if err != nil {
		panic(err)
	}
	go func() { panic(r.Run(context.Background())) }()
	<-r.Ready()
	ctx := context.Background()
	for _, s := range []runtime.Spec{
		spec(c, "p1", "long", "sh", "-c", "while true; do echo tick; sleep 0.05; done"),
		spec(c, "p1", "ends", "sh", "-c", "read x </go; exit 9"),
		spec(c, "p2", "created", "sleep", "100"),
	} {
		if s.ID == "p1-ends" {
			s.Command[2] = "until [ -e /go/on ]; do sleep 0.02; done; exit 9"
			s.Mounts = []runtime.Mount{{Source: dir, Target: "/go"}}
		}
		if err := r.Create(ctx, s); err != nil {
			panic(err)
		}
		if s.PodUID == "p1" {
			if err := r.Start(ctx, s.ID); err != nil {
				panic(err)
			}
		}
	}
	fmt.Println("ready")
	select {}
}

// A killed daemon loses no container and no exit, and a half-created container is created again.
func TestKill(t *testing.T) {
	c := testConfig(t)
	dir := filepath.Dir(c.DataDir)
	r, stop := open(t, c)
	load(t, r, "busybox.tar")
	stop()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "CORACLE_TEST_DAEMON="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line := make([]byte, 6)
	_, err = io.ReadFull(out, line)
	require.NoError(t, err)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "on"), nil, 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, "containers", ".new-half", "rootfs"), 0o755))
	ended := filepath.Join(c.DataDir, "containers", "p1-ends", "state.json")
	require.Eventually(t, func() bool { // while no daemon runs
		data, err := os.ReadFile(ended)
		return err == nil && bytes.Contains(data, []byte("exited"))
	}, time.Minute, 5*time.Millisecond)

	began := time.Now()
	r, stop = open(t, c)
	t.Logf("recovered in %s", time.Since(began))
	ctx := context.Background()
	got := map[string]runtime.Container{}
	list, err := r.List(ctx)
	require.NoError(t, err)
	for _, one := range list {
		got[one.ID] = one
	}
	require.Len(t, got, 3)
	require.Equal(t, runtime.Running, got["p1-long"].State)
	require.Equal(t, runtime.Exited, got["p1-ends"].State)
	require.Equal(t, 9, got["p1-ends"].ExitCode)
	require.Equal(t, runtime.Created, got["p2-created"].State)
	require.NoError(t, r.Start(ctx, "p2-created"))
	var text bytes.Buffer
	code, err := r.Exec(ctx, "p1-long", runtime.Exec{
		Command: []string{"echo", "still"}, Streams: runtime.Streams{Out: &text},
	})
	require.NoError(t, err)
	require.Zero(t, code)
	require.Equal(t, "still\n", text.String())

	// A killed shim's containers exit, and their message says why.
	var known process
	require.NoError(t, readPID(r.pod("p1").dir, &known))
	changes := r.Changes(t.Context())
	require.NoError(t, killProcess(known.PID))
	for {
		one, err := r.Get(ctx, "p1-long")
		require.NoError(t, err)
		if one.State == runtime.Exited {
			require.Equal(t, 137, one.ExitCode)
			require.NotEmpty(t, one.Message)
			break
		}
		<-changes
	}
	require.NoError(t, r.Purge(ctx))
	stop()
	left, err := os.ReadDir(c.DataDir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A hung shim does not block the start, and is watched once it answers.
func TestHungShim(t *testing.T) {
	c := testConfig(t)
	r, stop := open(t, c)
	load(t, r, "busybox.tar")
	ctx := context.Background()
	s := spec(c, "p", "a", "sleep", "1000")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	var known process
	require.NoError(t, readPID(r.pod("p").dir, &known))
	require.NoError(t, unix.Kill(known.PID, unix.SIGSTOP))
	stop()
	began := time.Now()
	r, stop = open(t, c)
	require.Less(t, time.Since(began), hungAfter, "what waits for the shim takes that long")
	one, err := r.Get(ctx, s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, one.State)
	require.NoError(t, unix.Kill(known.PID, unix.SIGCONT))
	code, err := r.Exec(ctx, s.ID, runtime.Exec{Command: []string{"true"}})
	require.NoError(t, err)
	require.Zero(t, code)

	// A pod without running containers needs no shim, and gets a new one if needed.
	require.NoError(t, r.Signal(ctx, s.ID, unix.SIGKILL, false))
	wait(t, r, s.ID, runtime.Exited)
	require.NoError(t, r.EndPod(ctx, "p"))
	require.NotEqual(t, known, identify(known.PID))
	again := spec(c, "p", "b", "true")
	require.NoError(t, r.Create(ctx, again))
	require.NoError(t, r.Start(ctx, again.ID))
	wait(t, r, again.ID, runtime.Exited)
	one, err = r.Get(ctx, s.ID)
	require.NoError(t, err)
	require.Equal(t, 137, one.ExitCode)
	require.NoError(t, r.Purge(ctx))
	stop()
}

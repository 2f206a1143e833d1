package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestBuildbarnBazel builds a C++ project with Bazel on a farm with two pools: all of it, from the cache, and after
// changes of a header that all sources include, while a worker's pod is killed and while a storage pod is deleted. It
// logs the durations beside the same builds without the farm.
func TestBuildbarnBazel(t *testing.T) {
	buildbarnImages(t)
	_, err := exec.LookPath("bazel")
	require.NoError(t, err, "run hack/deps.sh bazel, which installs bazel-bootstrap")
	runner := filepath.Join(host.Root(t), "dist/images-toolchain/toolchain.tar")
	require.FileExists(t, runner, "run `make toolchain-image`")
	h := host.New(t)
	h.Start()
	loadBuildbarn(t, h)
	h.Run("image", "load", runner)
	h.Ctl("create namespace builds")
	h.Ctl("apply -n builds -f " + filepath.Join(host.Root(t), "manifests/examples/buildbarn/bazel/farm.yaml"))
	h.Ctl("wait -n builds buildbarn/farm --for=condition=Ready --timeout=120s")
	address := strings.TrimSpace(h.Ctl("get service farm-frontend -n builds -o "+
		"jsonpath={.status.loadBalancer.ingress[0].ip}")) + ":8980"

	p := newProject(t)
	alone := &bazel{Host: h, t: t, project: p, name: "without the farm"}
	alone.cleanup()
	farm := &bazel{Host: h, t: t, project: p, name: "on the farm", flags: []string{
		"--remote_executor=grpc://" + address, "--jobs=16",
	}}
	farm.cleanup()

	alone.build("all")
	p.verify()
	got := farm.build("all")
	require.Equal(t, counts{remote: actions}, got)
	p.verify()
	require.Regexp(t, "^farm-worker-red-", p.built("red.txt"))
	require.Regexp(t, "^farm-worker-blue-", p.built("blue.txt"))
	farm.clean()
	require.Equal(t, counts{cached: actions}, farm.build("all, from the cache"))
	p.verify()

	changed := actions - 2 // the workers' names stay as they are
	p.change(2, false)
	alone.build("a changed header")
	require.Equal(t, counts{remote: changed}, farm.build("a changed header"))
	p.verify()

	const pool = "farm-worker-blue"
	t.Run("a worker's pod is killed", func(t *testing.T) {
		p.change(3, true)
		wait := farm.begin("a changed header, and a worker killed")
		old := farm.pod(pool, "")
		farm.slow(old)
		killed := time.Now()
		h.Ctl("delete pod -n builds " + old + " --grace-period=1")
		next := farm.pod(pool, old)
		farm.slow(next)
		cost := time.Since(killed)
		t.Logf("the killed worker's action was executing again after %.1f s", cost.Seconds())
		require.Less(t, cost, 40*time.Second, "the scheduler by itself takes a minute to give the action up")
		farm.release(next)
		require.Equal(t, counts{remote: changed}, wait())
		p.verify()
	})
	t.Run("a storage pod is deleted", func(t *testing.T) {
		p.change(4, true)
		pod := farm.pod(pool, "")
		farm.forget(pod)
		wait := farm.begin("a changed header, and a storage pod deleted")
		farm.slow(pod)
		h.Ctl("delete pod -n builds farm-storage-0")
		farm.release(pod)
		require.Equal(t, counts{remote: changed}, wait())
		p.verify()
	})
	farm.clean()
	require.Equal(t, counts{cached: actions}, farm.build("all, from the cache"), "storage lost nothing")
}

// bazel is Bazel with a server of its own, which ends with the test.
type bazel struct {
	*host.Host
	t       *testing.T
	project *project
	name    string
	flags   []string
	root    string // of its files
}

// counts are the numbers of actions that Bazel reports after a build.
type counts struct{ remote, cached, local int }

func (b *bazel) cleanup() {
	b.t.Helper()
	b.root = b.t.TempDir()
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, err := b.command(ctx, "shutdown").CombinedOutput()
		require.NoError(b.t, err, "%s", out)
	})
}

func (b *bazel) command(ctx context.Context, args ...string) *exec.Cmd {
	c := b.Command(ctx, "bazel", append([]string{
		"--nohome_rc", "--output_user_root=" + b.root, "--max_idle_secs=120"}, args...)...)
	c.Dir = b.project.dir
	return c
}

func (b *bazel) clean() {
	b.t.Helper()
	out, err := b.command(b.t.Context(), "clean").CombinedOutput()
	require.NoError(b.t, err, "%s", out)
}

func (b *bazel) build(what string) counts {
	b.t.Helper()
	return b.begin(what)()
}

var (
	summary = regexp.MustCompile(`INFO: (\d+) process(?:es)?: (.*)\.`)
	elapsed = regexp.MustCompile(`INFO: Elapsed time: ([0-9.]+)s`)
)

// begin starts a build. wait waits for its success and returns what it executed.
func (b *bazel) begin(what string) (wait func() counts) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	flags := append([]string{"build", "--noshow_progress", "--nosandbox_debug"}, b.flags...)
	c := b.command(ctx, append(flags, "//calc/...")...)
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	require.NoError(b.t, c.Start())
	return func() counts {
		b.t.Helper()
		defer cancel()
		err := c.Wait()
		require.NoError(b.t, err, "%s", out.String())
		found := summary.FindStringSubmatch(out.String())
		require.NotNil(b.t, found, "%s", out.String())
		var n counts
		for part := range strings.SplitSeq(found[2], ", ") {
			count, kind, _ := strings.Cut(part, " ")
			i, err := strconv.Atoi(count)
			require.NoError(b.t, err, part)
			switch kind {
			case "internal":
			case "remote":
				n.remote = i
			case "remote cache hit":
				n.cached = i
			default:
				n.local += i
			}
		}
		b.t.Logf("%s, %s: %s s: %s", what, b.name, elapsed.FindStringSubmatch(out.String())[1], found[2])
		return n
	}
}

// pod waits until a part has one pod, which is not old, and returns its name.
func (b *bazel) pod(part, old string) (name string) {
	b.t.Helper()
	f := &buildFarm{Host: b.Host, t: b.t}
	require.Eventually(b.t, func() bool {
		pods := f.staying("-l", "component="+part)
		if len(pods) == 1 {
			name = pods[0]
		}
		return name != "" && name != old
	}, host.Patience, 50*time.Millisecond)
	return name
}

// forget makes the slow action wait and report again; release lets it end.
func (b *bazel) forget(pod string)  { b.in(pod, "rm -f /worker/slow /worker/released") }
func (b *bazel) release(pod string) { b.in(pod, "touch /worker/released") }

func (b *bazel) in(pod, command string) {
	b.t.Helper()
	b.Ctl("exec -n builds " + pod + " -c runner -- " + command)
}

// slow waits until a pod executes the slow action.
func (b *bazel) slow(pod string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		_, err := b.Try("ctl", "exec", "-n", "builds", pod, "-c", "runner", "--", "test", "-e", "/worker/slow")
		return err == nil
	}, host.Patience, 100*time.Millisecond)
}

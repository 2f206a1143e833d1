package containerd

import (
	"bytes"
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/host/pids"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// A container that forks endlessly reaches the limit that it shares with its pod, and does not affect other pods.
func TestPodsHaveALimitOfProcesses(t *testing.T) {
	if hierarchy("pids") == "" {
		t.Skip("this kernel has no pids controller")
	}
	c := testConfig(t)
	c.PodPIDs = 40
	c.Reserved, _ = config.ParseReserved([]string{"memory=64Mi", "pid=100"})
	r := startWith(t, c)
	ctx := context.Background()
	begin := func(pod, name string) runtime.Spec {
		s := spec(c, pod, name, "sleep", "1000")
		require.NoError(t, r.Create(ctx, s))
		require.NoError(t, r.Start(ctx, s.ID))
		return s
	}
	run := func(s runtime.Spec, script string) (string, int) {
		var out bytes.Buffer
		code, err := r.Exec(ctx, s.ID, runtime.Exec{
			Command: []string{"sh", "-c", script}, Streams: runtime.Streams{Out: &out, Err: &out},
		})
		require.NoError(t, err)
		return out.String(), code
	}
	bomb, sibling, other := begin("p", "a"), begin("p", "b"), begin("q", "a")
	text, _ := run(bomb, "for i in $(seq 100); do sleep 1000 & done; true")
	require.Contains(t, text, "fork")
	stats, err := r.Stats(ctx, bomb.ID)
	require.NoError(t, err)
	require.LessOrEqual(t, stats.Pids, uint64(c.PodPIDs))
	text, code := run(other, "for i in $(seq 20); do true & done; wait; echo fine")
	require.Equal(t, "fine\n", text)
	require.Zero(t, code)
	_, err = r.Exec(ctx, sibling.ID, runtime.Exec{Command: []string{"true"}}) // the pod is at its limit
	t.Logf("exec in the full pod: %v", err)
	require.NoError(t, r.Remove(ctx, bomb.ID))
	_, code = run(sibling, "true")
	require.Zero(t, code)

	// All pods together leave the reserved resources to the machine.
	read := func(controller, file string) int64 {
		text, err := os.ReadFile(hierarchy(controller) + c.CgroupRoot + "/" + file)
		require.NoError(t, err)
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		require.NoError(t, err)
		return n
	}
	var info unix.Sysinfo_t
	require.NoError(t, unix.Sysinfo(&info))
	file := "memory.limit_in_bytes"
	if cgroup2() {
		file = "memory.max"
	}
	require.InDelta(t, int64(info.Totalram)*int64(info.Unit)-64<<20, read("memory", file), 1<<20)
	all, err := pids.Limit()
	require.NoError(t, err)
	require.Equal(t, all-100, read("pids", "pids.max"))
}

// The containers of a pod share its limits: even a single container cannot exceed them, whatever its own limit.
func TestPodsHaveLimitsOfTheirOwn(t *testing.T) {
	c := testConfig(t)
	r := startWith(t, c)
	ctx := context.Background()
	begin := func(name string) runtime.Spec {
		s := spec(c, "p", name, "sleep", "1000")
		s.Resources = runtime.Resources{MemoryBytes: 512 << 20, CPUPeriod: 100_000, CPUQuota: 30_000}
		require.NoError(t, r.Create(ctx, s))
		require.NoError(t, r.Start(ctx, s.ID))
		return s
	}
	cgroup := spec(c, "p", "a").CgroupParent
	require.NoError(t,
		r.UpdatePod(ctx, cgroup, runtime.PodLimits{MemoryBytes: 64 << 20, CPUQuota: 50_000, CPUShares: 512}))
	a, b := begin("a"), begin("b")
	allocate := func(s runtime.Spec) int {
		code, err := r.Exec(ctx, s.ID, runtime.Exec{
			Command: []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"},
			Streams: runtime.Streams{Out: io.Discard, Err: io.Discard},
		})
		require.NoError(t, err)
		return code
	}
	read := func(controller, v1, v2 string) string {
		file := v1
		if cgroup2() {
			file = v2
		}
		text, err := os.ReadFile(hierarchy(controller) + a.CgroupParent + "/" + file)
		require.NoError(t, err)
		return strings.TrimSpace(string(text))
	}
	require.Equal(t, strconv.Itoa(64<<20), read("memory", "memory.limit_in_bytes", "memory.max"))
	require.Contains(t, []string{"50000", "50000 100000"}, read("cpu", "cpu.cfs_quota_us", "cpu.max"))
	require.Contains(t, []string{"512", "59"}, read("cpu", "cpu.shares", "cpu.weight"))
	require.Equal(t, 137, allocate(b), "killed by the pod's limit")

	burn := runtime.Exec{Command: []string{"sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"}}
	_, err := r.Exec(ctx, a.ID, burn)
	require.NoError(t, err)
	stats, err := r.Stats(ctx, a.ID)
	require.NoError(t, err)
	require.Positive(t, stats.ThrottledPeriods)
	require.GreaterOrEqual(t, stats.Periods, stats.ThrottledPeriods)
	require.Positive(t, stats.Throttled)
	require.Less(t, stats.Swap, uint64(64<<20))

	whole, err := r.MemoryUsage(ctx, cgroup, "")
	require.NoError(t, err)
	part, err := r.MemoryUsage(ctx, cgroup, a.ID)
	require.NoError(t, err)
	require.Positive(t, part)
	require.Greater(t, whole, part)
	require.Less(t, whole, uint64(64<<20))

	require.NoError(t, r.UpdatePod(ctx, cgroup, runtime.PodLimits{MemoryBytes: 256 << 20})) // the other limits stay
	for _, s := range []runtime.Spec{a, b} {
		require.NoError(t,
			r.Update(ctx, s.ID, runtime.Resources{MemoryBytes: 512 << 20, CPUPeriod: 100_000, CPUQuota: 20_000}))
	}
	require.NoError(t, r.UpdatePod(ctx, cgroup, runtime.PodLimits{CPUQuota: 20_000}))
	require.Equal(t, strconv.Itoa(256<<20), read("memory", "memory.limit_in_bytes", "memory.max"))
	require.Contains(t, []string{"20000", "20000 100000"}, read("cpu", "cpu.cfs_quota_us", "cpu.max"))
	require.Zero(t, allocate(b))

	for _, s := range []runtime.Spec{a, b} {
		require.NoError(t,
			r.Update(ctx, s.ID, runtime.Resources{MemoryBytes: runtime.Unlimited, CPUQuota: runtime.Unlimited}))
	}
	require.NoError(t,
		r.UpdatePod(ctx, cgroup, runtime.PodLimits{MemoryBytes: runtime.Unlimited, CPUQuota: runtime.Unlimited}))
	for _, of := range []string{"", "/" + a.ID} {
		a.CgroupParent += of
		require.Contains(t, []string{"9223372036854771712", "max"}, read("memory", "memory.limit_in_bytes", "memory.max"))
		require.Contains(t, []string{"-1", "max 100000"}, read("cpu", "cpu.cfs_quota_us", "cpu.max"))
	}
}

// A pod's CPU limit may be lower than the limit of a container that has just ended.
func TestAContainerThatEndedLimitsItsPodNoMore(t *testing.T) {
	c := testConfig(t)
	r := startWith(t, c)
	ctx := context.Background()
	s := spec(c, "p", "a", "sleep", "1000")
	s.Resources = runtime.Resources{CPUPeriod: 100_000, CPUQuota: 50_000}
	require.NoError(t, r.UpdatePod(ctx, s.CgroupParent, runtime.PodLimits{CPUQuota: 50_000}))
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	require.NoError(t, r.Signal(ctx, s.ID, unix.SIGKILL, true))
	wait(t, r, s.ID, runtime.Exited)
	require.NoError(t, r.UpdatePod(ctx, s.CgroupParent, runtime.PodLimits{CPUQuota: 20_000}))
}

func TestWeights(t *testing.T) {
	for shares, want := range map[uint64]int64{0: 1, 2: 1, 512: 59, 1024: 100, 2048: 174, 262144: 10000, 1 << 40: 10000} {
		require.Equal(t, want, weightOf(shares), shares)
	}
}

// If a limit cannot be set, pods run without it.
func TestPodsRunWhereNoLimitCanBeSet(t *testing.T) {
	c := testConfig(t)
	c.PodPIDs = 1 << 62 // no kernel accepts it
	r := startWith(t, c)
	ctx := context.Background()
	s := spec(c, "p", "a", "true")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	wait(t, r, s.ID, runtime.Exited)
}

package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
	draplugin "k8s.io/kubelet/pkg/apis/dra/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/containerd"
	"github.com/coracle-dev/coracle/test/dradriver"
)

// life is one agent process with the real runtime and network. It starts pods, resizes and deletes them, and ends
// once nothing is left. It may be killed at a failpoint, or have each acquisition fail once.
type life struct {
	Dir    string
	Pods   int // 0: the API has none, and an earlier life's leftovers are released
	KillAt string
	Nth    int // which occurrence of KillAt
	Fail   bool
}

func (l life) path(parts ...string) string {
	return filepath.Join(append([]string{l.Dir}, parts...)...)
}

func (l life) cgroup() string { return "/coracle-test/" + filepath.Base(l.Dir) }

// hook returns a failpoint.Hook that prints each point reached.
func (l life) hook() func(string) error {
	var mu sync.Mutex
	count := map[string]int{}
	return func(point string) error {
		mu.Lock()
		defer mu.Unlock()
		count[point]++
		fmt.Println("point", point)
		if point == l.KillAt && count[point] == l.Nth {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if l.Fail && count[point] == 1 {
			return fmt.Errorf("injected at %s", point)
		}
		return nil
	}
}

func (l life) containers(log *slog.Logger) containerd.Config {
	return containerd.Config{
		DataDir:    l.path("data/containerd"),
		RunDir:     l.path("run/containerd"),
		CgroupRoot: l.cgroup(),
		PodPIDs:    100,
		Log:        log,
	}
}

// live runs the process.
func (l life) live() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	hook := l.hook()
	c := l.containers(log)
	c.Failpoints = hook
	r, err := containerd.New(c)
	if err != nil {
		return err
	}
	users := userns.New(userns.Config{Program: r.Shim(), Dir: c.DataDir, IDs: userns.Unit, Pods: 110})
	n, err := network.New(network.Config{
		RunDir: l.path("run/net"), NodeIP: netip.MustParseAddr("192.0.2.1"), Prefix: "ctest",
		PodCIDR: netip.MustParsePrefix("10.99.0.0/28"), Users: users, Logger: log, Failpoints: hook,
	})
	if err != nil {
		return err
	}
	cluster := newCluster(ctx)
	a, err := New(Config{
		Environment: pod.Environment{
			Client:         cluster,
			Runtime:        r,
			Network:        n,
			NodeName:       "node",
			CgroupRoot:     l.cgroup(),
			DataDir:        l.path("data/agent"),
			RunDir:         l.path("run/agent"),
			LogDir:         l.path("log"),
			Recorder:       &eventList{},
			UserNamespaces: users.Supported,
			Logger:         log,
			Failpoints:     hook,
		},
		NodeIP:    netip.MustParseAddr("192.0.2.1"),
		PluginDir: l.path("k"),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- r.Run(ctx) }()
	ready := func(c <-chan struct{}) error {
		select {
		case <-c:
			return nil
		case err := <-ended:
			return fmt.Errorf("ended before it was ready: %w", err)
		}
	}
	if err := ready(r.Ready()); err != nil {
		return err
	}
	if err := cluster.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: map[string]string{"k": "v"},
	}); err != nil {
		return err
	}
	var pods []*corev1.Pod
	for i := range l.Pods {
		pods = append(pods, everything(i))
		if err := cluster.Create(ctx, claimOf(pods[i])); err != nil {
			return err
		}
		if err := cluster.Create(ctx, pods[i]); err != nil {
			return err
		}
	}
	// A pod that was being released may only have left the volume that records that its containers have restarted.
	again, err := filepath.Glob(l.path("data/agent/pods/*/volumes/disk/again"))
	if err != nil {
		return err
	}
	running, err := cluster.Watch(ctx, &corev1.PodList{})
	if err != nil {
		return err
	}
	driver := &dradriver.Driver{Name: driverName, Kubelet: l.path("k"), Public: l.path("k"), Call: l.claimCall,
		Devices: func(*draplugin.Claim) *draplugin.NodePrepareResourceResponse {
			return &draplugin.NodePrepareResourceResponse{}
		}}
	if err := driver.Start(); err != nil {
		return err
	}
	defer driver.Stop()
	go func() { ended <- a.Run(ctx) }()
	if err := ready(a.Ready()); err != nil {
		return err
	}
	plugin, err := gadgets{}.start(ctx, l.path("k", "device-plugins"))
	if err != nil {
		return err
	}
	defer plugin.Stop()
	await(running, pods, func(e watch.Event, p *corev1.Pod) bool {
		c := p.Status.ContainerStatuses
		return p.Status.Phase == corev1.PodRunning && c[0].Ready && (c[0].RestartCount > 0 || len(again) > 0)
	})
	running.Stop()
	if err := l.apart(r); err != nil {
		return err
	}
	resized, err := cluster.Watch(ctx, &corev1.PodList{})
	if err != nil {
		return err
	}
	more := amounts("200m", "96Mi")
	for _, p := range pods {
		// The agent writes the status of starting pods meanwhile, more often on a loaded machine than the default allows.
		if err := retry.RetryOnConflict(wait.Backoff{Steps: 1000, Duration: 10 * time.Millisecond}, func() error {
			if err := cluster.Get(ctx, ctrl.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			p.Spec.Resources = more
			p.Generation++
			return cluster.Update(ctx, p)
		}); err != nil {
			return err
		}
	}
	await(resized, pods, func(e watch.Event, p *corev1.Pod) bool {
		return p.Status.Resources != nil && equality.Semantic.DeepEqual(*p.Status.Resources, *more)
	})
	resized.Stop()
	fmt.Println("resized")
	gone, err := cluster.Watch(ctx, &corev1.PodList{})
	if err != nil {
		return err
	}
	for _, p := range pods {
		if err := cluster.Delete(ctx, p); err != nil {
			return err
		}
	}
	await(gone, pods, func(e watch.Event, p *corev1.Pod) bool { return e.Type == watch.Deleted })
	gone.Stop()
	for l.Pods == 0 && len(l.left()) > 0 { // poll: there is no event for the release of an orphan
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	return errors.Join(<-ended, <-ended, n.Close())
}

// apart returns an error unless each container has its pod's recorded user IDs, and no two pods share any.
func (l life) apart(r *containerd.Runtime) error {
	list, err := r.List(context.Background())
	if err != nil {
		return err
	}
	owners := map[uint32]string{}
	for _, c := range list {
		if l.Pods == 0 || c.State != runtime.Running { // its pod is being released
			continue
		}
		var record struct{ Users userns.Range }
		data, err := os.ReadFile(l.path("run/net/ns", c.PodUID, "pod.json"))
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			return err
		}
		ids, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", c.PID))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // exited meanwhile, to restart
			continue
		}
		if err != nil {
			return err
		}
		want := "0 0 4294967295"
		if record.Users.Count > 0 {
			want = fmt.Sprintf("0 %d %d", record.Users.First, record.Users.Count)
			if other := owners[record.Users.First]; other != "" && other != c.PodUID {
				return fmt.Errorf("pods %s and %s have the same IDs", other, c.PodUID)
			}
			owners[record.Users.First] = c.PodUID
		}
		if have := strings.Join(strings.Fields(string(ids)), " "); have != want {
			return fmt.Errorf("a container of pod %s has the IDs %q, and the record has %q", c.PodUID, have, want)
		}
	}
	return nil
}

// left lists leftovers of pods on the machine.
func (l life) left() (found []string) {
	for _, dir := range []string{
		"data/agent/pods", "data/containerd/containers", "run/net/ns", "run/containerd/pods", "run/agent/volumes", "log",
		"prepared",
	} {
		entries, err := os.ReadDir(l.path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			found = append(found, err.Error())
		}
		for _, e := range entries {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	for file, list := range map[string]string{"devices.json": "assigned", "claims.json": "claims"} {
		data, err := os.ReadFile(l.path("data/agent", file))
		var record map[string]any
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			found = append(found, err.Error())
		}
		if record[list] != nil {
			found = append(found, fmt.Sprint(file, ": ", record[list]))
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		found = append(found, err.Error())
	}
	for _, i := range links {
		if i.Name != "lo" && i.Name != "up0" && i.Name != "up1" {
			found = append(found, "link "+i.Name)
		}
	}
	cgroups, _ := filepath.Glob("/sys/fs/cgroup/*" + l.cgroup() + "/*/")
	unified, _ := filepath.Glob("/sys/fs/cgroup" + l.cgroup() + "/*/")
	found = append(found, append(cgroups, unified...)...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		found = append(found, err.Error())
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, l.Dir) && at != l.path("run/agent/volumes") {
			found = append(found, "mount "+at)
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, p := range processes {
		if exe, _ := os.Readlink(p); strings.HasPrefix(exe, l.path("data")) {
			found = append(found, "process "+p)
		}
	}
	return found
}

// leavesNothing waits until nothing is left. The kernel removes network namespaces and processes with a delay.
func (l life) leavesNothing(t *testing.T) {
	t.Helper()
	if !assert.Eventually(t, func() bool { return len(l.left()) == 0 }, time.Minute, 5*time.Millisecond) {
		require.Empty(t, l.left())
	}
}

// run runs the process and returns the failpoints that it reached.
func (l life) run(t *testing.T) (points []string, err error) {
	t.Helper()
	data, err := json.Marshal(l)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), lifeEnv+"="+string(data))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err = cmd.Run()
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		if point, ok := strings.CutPrefix(lines.Text(), "point "); ok {
			points = append(points, point)
		}
	}
	if err != nil && cmd.ProcessState.ExitCode() >= 0 { // not killed
		err = fmt.Errorf("%w, after %v: %s", err, points[max(0, len(points)-3):], log.String())
	}
	return points, err
}

// prepare configures the test's network namespace and loads the image.
func prepare(t *testing.T, l life) {
	for _, args := range []string{
		"link set lo up", "link add up0 type veth peer name up1", "addr add 192.0.2.1/24 dev up0", "link set up0 up",
	} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	require.NoError(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	r, err := containerd.New(l.containers(slog.Default()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-r.Ready()
	f, err := os.Open(l.path("busybox.tar"))
	require.NoError(t, err)
	_, err = r.Images().Load(ctx, f)
	require.NoError(t, errors.Join(err, f.Close()))
	cancel()
	require.NoError(t, <-done)
	t.Cleanup(func() { purge(t, l) })
	// The device plugin is recorded as known, so that the agent counts its resource before the plugin registers.
	require.NoError(t, os.MkdirAll(l.path("data/agent"), 0o700))
	require.NoError(t, os.WriteFile(l.path("data/agent/devices.json"), []byte(`{"resources":["`+gadget+`"]}`), 0o600))
}

func purge(t *testing.T, l life) {
	r, err := containerd.New(l.containers(slog.Default()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-r.Ready()
	require.NoError(t, r.Purge(ctx))
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, network.Reset(context.Background(), network.Config{RunDir: l.path("run/net"), Prefix: "ctest"}))
	require.NoError(t, Reset(l.path("data"), l.path("run")))
}

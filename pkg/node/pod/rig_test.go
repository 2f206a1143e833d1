package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
	"github.com/coracle-dev/coracle/pkg/node/volume"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/tasklogs"
)

// rig is a Manager with an in-memory runtime and API and a network that only assigns addresses, in a synctest bubble.
type rig struct {
	*testing.T
	m       *Manager
	api     *api
	runtime *fake.Runtime
	network *pool
	events  *eventLog
	dir     string
	node    *corev1.Node
	static  []*corev1.Pod // started before the pods of the API are known
	away    bool          // no API server answers a starting process
	down    atomic.Bool   // the machine is shutting down
	noUsers atomic.Bool   // pods cannot have user namespaces
	boots   int
	stop    func() // stops the Manager like a killed process, without cleanup

	// wrapRuntime, if set, wraps the runtime for Managers that are started.
	wrapRuntime func(runtime.Runtime) runtime.Runtime
	// volumePlugins and failpoints are for Managers that are started.
	volumePlugins []volume.Plugin
	failpoints    failpoint.Hook
}

func with(t *testing.T, c fake.Config, f func(r *rig)) {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "run", "volumes"), unix.MNT_DETACH) })
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			T: t, runtime: fake.New(c), network: &pool{sandboxes: map[string]network.Sandbox{}}, events: &eventLog{}, dir: dir,
			node: &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"),
					corev1.ResourcePods: resource.MustParse("10")}},
			},
		}
		r.api = &api{pods: map[types.UID]*corev1.Pod{}}
		r.start()
		defer func() {
			r.stop()
			require.NoError(t, r.runtime.Purge(context.Background()))
			synctest.Wait()
		}()
		f(r)
	})
}

// start starts a Manager like an agent's process: it sends the pods of the API, then calls Sync.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.Context())
	var rt runtime.Runtime = r.runtime
	if r.wrapRuntime != nil {
		rt = r.wrapRuntime(rt)
	}
	r.m = New(Config{
		Environment: Environment{
			Client:         &connection{api: r.api},
			Runtime:        rt,
			Network:        r.network,
			Recorder:       r.events,
			Logger:         slog.New(slog.DiscardHandler),
			NodeName:       "node",
			DataDir:        filepath.Join(r.dir, "data"),
			RunDir:         filepath.Join(r.dir, "run"),
			LogDir:         filepath.Join(r.dir, "log"),
			ClusterDomain:  "cluster.local",
			Failpoints:     r.failpoints,
			UserNamespaces: r.userNamespaces,
		},
		HostIP:        "192.0.2.1",
		BootID:        strconv.Itoa(r.boots),
		Parts:         []part.Part{tasklogs.Part(part.Host{LogDir: filepath.Join(r.dir, "log")})},
		Node:          func() *corev1.Node { return r.node },
		Allocatable:   func() corev1.ResourceList { return r.node.Status.Allocatable },
		VolumePlugins: r.volumePlugins,
		ShuttingDown:  r.down.Load,
		Services:      func(context.Context, string) ([]*corev1.Service, error) { return nil, nil },
	})
	m := r.m
	r.stop = sync.OnceFunc(func() {
		r.api.subscribe(nil)
		cancel()
		require.NoError(r, m.Wait())
	})
	require.NoError(r, m.Start(ctx))
	for _, p := range r.static {
		m.StartStatic(p, p.Name+".yaml")
	}
	if !r.away {
		r.api.subscribe(m)
		require.NoError(r, m.Sync(ctx))
	}
	synctest.Wait()
}

func (r *rig) restart() { r.stop(); r.start() }

// reboot ends the agent and all containers and releases all sandboxes before the next agent starts.
func (r *rig) reboot() {
	r.stop()
	list, err := r.runtime.List(context.Background())
	require.NoError(r, err)
	for _, c := range list {
		if c.State == runtime.Running {
			require.NoError(r, r.runtime.Signal(context.Background(), c.ID, unix.SIGKILL, true))
		}
	}
	synctest.Wait()
	clear(r.network.sandboxes)
	r.boots++
	r.start()
}

func (r *rig) userNamespaces() error {
	if r.noUsers.Load() {
		return errors.New("mount proc: operation not permitted")
	}
	return nil
}

func (r *rig) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// create stores a pod bound to the node, and returns it when the bubble is idle.
func (r *rig) create(p *corev1.Pod) *corev1.Pod {
	p.Namespace, p.UID, p.Generation, p.Spec.NodeName = "default", types.UID("uid-"+p.Name), 1, "node"
	p.Spec.DNSPolicy = corev1.DNSDefault
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].ImagePullPolicy = corev1.PullIfNotPresent
			if list[i].Image == "" {
				list[i].Image = "busybox"
			}
		}
	}
	r.api.put(p)
	synctest.Wait()
	return r.pod(p.Name)
}

func (r *rig) pod(name string) *corev1.Pod { return r.api.get(types.UID("uid-" + name)) }

func (r *rig) change(name string, f func(*corev1.Pod)) *corev1.Pod {
	p := r.pod(name)
	f(p)
	p.Generation++
	r.api.put(p)
	synctest.Wait()
	return r.pod(name)
}

// delete deletes a pod; grace is in seconds.
func (r *rig) delete(name string, grace int64) {
	p := r.pod(name)
	if at := metav1.Now(); p.DeletionTimestamp == nil {
		p.DeletionTimestamp = &at
	}
	p.DeletionGracePeriodSeconds = &grace
	r.api.put(p)
	synctest.Wait()
}

func (r *rig) status(pod, container string) corev1.ContainerStatus {
	r.Helper()
	p := r.pod(pod)
	require.NotNil(r, p, "pod %s is gone", pod)
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s
			}
		}
	}
	require.Fail(r, "no status", "container %s of %s", container, pod)
	return corev1.ContainerStatus{}
}

func (r *rig) running() []string {
	list, err := r.runtime.List(context.Background())
	require.NoError(r, err)
	out := []string{}
	for _, c := range list {
		if c.State == runtime.Running {
			out = append(out, c.Labels[labelName])
		}
	}
	return out
}

func (r *rig) requireNothingLeft() {
	r.Helper()
	list, err := r.runtime.List(context.Background())
	require.NoError(r, err)
	require.Empty(r, list, "containers")
	require.Empty(r, r.network.sandboxes, "sandboxes")
	for _, pattern := range []string{"data/pods/*", "run/volumes/*", "log/default_*"} {
		left, err := filepath.Glob(filepath.Join(r.dir, pattern))
		require.NoError(r, err)
		require.Empty(r, left)
	}
	require.Empty(r, r.m.all(), "workers")
}

func state(s corev1.ContainerStatus) string {
	switch {
	case s.State.Waiting != nil:
		return "waiting: " + s.State.Waiting.Reason
	case s.State.Terminated != nil:
		return "terminated: " + s.State.Terminated.Reason + " " + strconv.Itoa(int(s.State.Terminated.ExitCode))
	case s.State.Running != nil:
		return "running"
	}
	return "none"
}

func conditionOf(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

// pool is a network that only assigns addresses.
type pool struct {
	mu        sync.Mutex
	sandboxes map[string]network.Sandbox
	next      byte
	// refuse, set by refusing, may fail a call.
	refuse func(call string) error
}

func (n *pool) check(ctx context.Context, call string) error {
	n.mu.Lock()
	refuse := n.refuse
	n.mu.Unlock()
	if err := ctx.Err(); err != nil || refuse == nil {
		return err
	}
	return refuse(call)
}

func (n *pool) refusing(f func(call string) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = f
}

func (n *pool) Setup(ctx context.Context, p network.Pod) (network.Sandbox, error) {
	if err := n.check(ctx, "setup"); err != nil {
		return network.Sandbox{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s, has := n.sandboxes[p.UID]
	if !has {
		n.next++
		s = network.Sandbox{UID: p.UID, IP: netip.AddrFrom4([4]byte{10, 0, 0, n.next})}
		if p.OwnUsers {
			s.UserNS, s.IDs = "/fake/users-of-"+p.UID, userns.Range{First: uint32(n.next) * userns.Unit, Count: userns.Unit}
		}
		n.sandboxes[p.UID] = s
	}
	return s, nil
}

func (n *pool) Teardown(ctx context.Context, uid string) error {
	if err := n.check(ctx, "teardown"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sandboxes, uid)
	return nil
}

func (n *pool) List(context.Context) ([]network.Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]network.Sandbox, 0, len(n.sandboxes))
	for _, s := range n.sandboxes {
		out = append(out, s)
	}
	return out, nil
}

func (n *pool) Enter(_ context.Context, _ string, f func() error) error { return f() }

func (n *pool) Traffic(context.Context) (map[string]network.Traffic, []network.Traffic, error) {
	return nil, nil, nil
}

func (n *pool) Routes(context.Context, map[netip.Prefix]netip.Addr) error { return nil }

// eventLog is a Recorder that keeps events as "reason: message".
type eventLog struct {
	mu  sync.Mutex
	all []string
}

func (l *eventLog) About(_ corev1.ObjectReference, _, reason, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	l.all = append(l.all, reason+": "+format)
}

func (l *eventLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

func podOf(name string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: new(int64(30)), Containers: []corev1.Container{containerNamed("main", command...)}},
	}
}

func containerNamed(name string, command ...string) corev1.Container {
	return corev1.Container{Name: name, Command: command}
}

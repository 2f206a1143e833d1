package static

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// rig is a Manager of a folder with fake pods and a fake API. changed is signalled after each change of either.
type rig struct {
	*testing.T
	m   *Manager
	dir string

	mu      sync.Mutex
	changed chan struct{}
	node    types.UID
	left    map[types.UID]Left
	pods    map[types.UID]*corev1.Pod
	files   map[types.UID]string
	onStart func()
	stopped map[types.UID]bool
	mirrors map[types.UID]*corev1.Pod // as passed to SetMirror
	events  []string
	api     map[types.NamespacedName]*corev1.Pod
	refuse  error
	block   chan struct{} // if set, creates wait until it is closed
	made    int
	blocked bool
}

func newRig(t *testing.T) *rig {
	r := &rig{
		T: t, dir: filepath.Join(t.TempDir(), "manifests"), changed: make(chan struct{}), node: "node-1",
		left: map[types.UID]Left{},
		pods: map[types.UID]*corev1.Pod{}, files: map[types.UID]string{}, stopped: map[types.UID]bool{},
		mirrors: map[types.UID]*corev1.Pod{}, api: map[types.NamespacedName]*corev1.Pod{},
	}
	return r
}

func (r *rig) start() (stop func()) {
	r.m = New(Config{
		Dir: r.dir, NodeName: "node", Decode: decode, Pods: r, Client: api{rig: r}, Node: func() *corev1.Node {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.node == "" {
				return nil
			}
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: r.node}}
		}, Event: func(_, reason, message string) {
			r.change(func() { r.events = append(r.events, reason+": "+message) })
		}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	r.m.Start()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.m.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.Cleanup(stop)
	return stop
}

func decode(data []byte, complete func(*corev1.Pod) error) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, err
	}
	return p, complete(p)
}

func (r *rig) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *rig) until(what string, f func() bool) {
	r.Helper()
	late := time.After(patience)
	for {
		r.mu.Lock()
		ok, changed := f(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			r.Fatalf("never: %s; events: %v", what, r.said())
		}
	}
}

func (r *rig) StartStatic(p *corev1.Pod, file string) {
	if r.onStart != nil {
		r.onStart()
	}
	r.change(func() { r.pods[p.UID], r.files[p.UID] = p, file })
}
func (r *rig) StopStatic(uid types.UID) { r.change(func() { r.stopped[uid] = true }) }
func (r *rig) SetMirror(uid types.UID, m *corev1.Pod) {
	r.change(func() { r.mirrors[uid] = m })
}
func (r *rig) LeftStatic() map[types.UID]Left { return r.left }

// nextProcess starts a new Manager after the last one has ended, while its pods keep running.
func (r *rig) nextProcess() {
	r.change(func() {
		for uid, p := range r.pods {
			r.left[uid] = Left{nameOf(p), r.files[uid]}
		}
		clear(r.pods)
	})
	r.start()
}

// ends reports that nothing is left of a pod.
func (r *rig) ends(uid types.UID) {
	r.change(func() { delete(r.pods, uid); delete(r.stopped, uid); delete(r.mirrors, uid) })
	r.m.Ended(uid)
}

// pod, all, stops and said return the current state. Conditions of until hold the lock and use named and the fields.
func (r *rig) pod(name string) *corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.named(name)
}

func (r *rig) all() map[types.UID]*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.pods)
}

func (r *rig) stops() map[types.UID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.stopped)
}

func (r *rig) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// named returns the pod of that name that was started last, or nil. Called with the lock held.
func (r *rig) named(name string) *corev1.Pod {
	for _, p := range r.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (r *rig) write(name, text string) {
	r.Helper()
	require.NoError(r, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
}

func manifestOf(name, image string) string {
	return strings.NewReplacer("NAME", name, "IMAGE", image).Replace(`apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - {name: c, image: "IMAGE"}
`)
}

// api is an API server that reports its own writes to the Manager.
type api struct {
	client.Interface
	*rig
}

func (a api) Create(_ context.Context, o ctrl.Object, _ ...ctrl.CreateOption) error {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return errors.New("not a pod")
	}
	a.mu.Lock()
	block := a.block
	a.mu.Unlock()
	if block != nil {
		a.change(func() { a.blocked = true })
		<-block
	}
	var err error
	a.change(func() {
		switch {
		case a.refuse != nil:
			err = a.refuse
			return
		case a.rig.api[nameOf(p)] != nil:
			err = apierrors.NewAlreadyExists(schema.GroupResource{Resource: "pods"}, p.Name)
			return
		}
		a.made++
		p.UID = types.UID("api-" + string(rune('a'+a.made)))
		a.rig.api[nameOf(p)] = p.DeepCopy()
	})
	if err == nil {
		a.m.Seen(p.DeepCopy())
	}
	return err
}

func (a api) Delete(_ context.Context, o ctrl.Object, opts ...ctrl.DeleteOption) error {
	d := ctrl.DeleteOptions{}
	d.ApplyOptions(opts)
	name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	var old *corev1.Pod
	a.change(func() {
		if old = a.rig.api[name]; old != nil && *d.Preconditions.UID == old.UID && *d.GracePeriodSeconds == 0 {
			delete(a.rig.api, name)
		}
	})
	if old == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name.Name)
	}
	a.m.Gone(old)
	return nil
}

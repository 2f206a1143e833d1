package messages

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// API sends requests to the API server.
type API interface {
	// Do sends a request whose URL has only a path. It authenticates with the token, or as the node if token is empty.
	Do(req *http.Request, token string) (*http.Response, error)
}

// Config configures a Manager. All fields are required except Former and API.
type Config struct {
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// Former is the directory where former versions kept messages. Start warns if it has any.
	Former string
	// API sends messages for pods. It may be nil in tests.
	API API
	// Token returns a token of the pod's service account.
	Token func(ctx context.Context, p *corev1.Pod) (string, error)
	// Event records an event on a pod.
	Event  func(p *corev1.Pod, kind, reason, message string)
	Logger *slog.Logger
}

// Manager holds the queues of the node's pods. It is safe for concurrent use.
type Manager struct {
	c      Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	bytes  *budget
	listen func(ctx context.Context, uid string) (net.Listener, error)

	mu      sync.Mutex
	stopped bool
	pods    map[types.UID]*receiver
}

// New returns a Manager. Call Start before Setup.
func New(c Config) *Manager {
	m := &Manager{c: c, bytes: &budget{limit: nodeBytes}, pods: map[types.UID]*receiver{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.listen = m.listenInPod
	return m
}

// Start implements part.Part.
func (m *Manager) Start() error {
	if left, _ := filepath.Glob(filepath.Join(m.c.Former, "*.log")); m.c.Former != "" && len(left) > 0 {
		m.c.Logger.Warn("messages of a former version are left on this node and will not be delivered: "+
			"start the former version to have them handled, or remove the directory", "dir", m.c.Former)
	}
	return nil
}

// Stop ends all queues and waits for background work.
func (m *Manager) Stop() {
	m.mu.Lock()
	m.stopped = true
	pods := m.pods
	m.pods = map[types.UID]*receiver{}
	m.mu.Unlock()
	m.cancel()
	for _, r := range pods {
		r.end()
		r.queue.release()
	}
	m.wg.Wait()
}

// background runs f unless the Manager has stopped.
func (m *Manager) background(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.backgroundLocked(f)
}

func (m *Manager) backgroundLocked(f func()) {
	if m.stopped {
		return
	}
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		f()
	}()
}

// begin registers background work; if it returns true, the caller must call m.wg.Done at the end.
func (m *Manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopped {
		m.wg.Add(1)
	}
	return !m.stopped
}

// Observe tells the queue which container of the pod receives messages, and whether it runs.
func (m *Manager) Observe(uid types.UID, container string, runs bool) {
	if r := m.receiver(uid); r != nil {
		r.queue.observe(container, runs)
	}
}

// Close refuses further messages for a terminating pod, and sends the waiting ones back.
func (m *Manager) Close(uid types.UID) {
	if r := m.receiver(uid); r != nil {
		r.queue.close()
	}
}

// Release removes the queue of a pod. None of its containers may run any longer.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	r := m.pods[uid]
	delete(m.pods, uid)
	m.mu.Unlock()
	if r != nil {
		r.end()
		r.queue.release()
	}
}

func (m *Manager) receiver(uid types.UID) *receiver {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid]
}

// Env returns the environment variables with which the pod's containers find the Runtime API; nil without a queue.
func (*Manager) Env(p *corev1.Pod) []corev1.EnvVar {
	c, err := workers.ParseQueue(p)
	if c == nil || err != nil {
		return nil
	}
	env := []corev1.EnvVar{{Name: workers.MessagesEnv, Value: workers.RuntimeAddress}}
	if c.Mode == workers.ModePoll {
		env = append(env, corev1.EnvVar{Name: workers.RuntimeEnv, Value: workers.RuntimeAddress})
	}
	return env
}

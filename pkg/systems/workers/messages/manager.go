package messages

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// API sends requests to the API server.
type API interface {
	// Do sends a request whose URL has only a path. It authenticates with the token, or as the node if token is empty.
	Do(req *http.Request, token string) (*http.Response, error)
}

// Config configures a Manager. All fields are required except Metrics.
type Config struct {
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// Dir is the directory of the log of AtLeastOnce messages. It is created with the first one.
	Dir string
	// API sends messages for pods, and moves messages to other pods. It may be nil in tests.
	API API
	// Token returns a token of the pod's service account.
	Token func(ctx context.Context, p *corev1.Pod) (string, error)
	// Changed is called when the Condition of a pod changes.
	Changed func(types.UID)
	// Event records an event on a pod.
	Event   func(p *corev1.Pod, kind, reason, message string)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Manager holds the queues of the node's pods. It is safe for concurrent use.
type Manager struct {
	c      Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	bytes  *budget
	sends  chan struct{} // limits concurrent sends to other pods
	listen func(ctx context.Context, uid string) (net.Listener, error)

	mu      sync.Mutex
	stopped bool
	pods    map[types.UID]*receiver
	log     *messageLog                 // nil until Start
	orphans map[types.UID][]*stored     // messages in the log whose pod has no Setup yet
	counted map[workers.Failure]float64 // dropped messages
	ended   counters                    // sums of removed queues
}

// New returns a Manager. Call Start before Setup.
func New(c Config) *Manager {
	m := &Manager{
		c:       c,
		bytes:   &budget{limit: nodeBytes},
		sends:   make(chan struct{}, 64),
		pods:    map[types.UID]*receiver{},
		counted: map[workers.Failure]float64{},
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.listen = m.listenInPod
	if c.Metrics != nil {
		c.Metrics.MustRegister(collector{m})
	}
	return m
}

// Start reads the unfinished messages of an earlier process from the log.
func (m *Manager) Start() error {
	log, list, err := openLog(m.c.Dir)
	if err != nil {
		return fmt.Errorf("messages: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log, m.orphans = log, map[types.UID][]*stored{}
	for _, s := range list {
		m.orphans[types.UID(s.UID)] = append(m.orphans[types.UID(s.UID)], s)
	}
	return nil
}

// Stop ends all queues and waits for background work. AtLeastOnce messages stay in the log.
func (m *Manager) Stop() {
	m.mu.Lock()
	m.stopped = true
	pods := m.pods
	m.pods = map[types.UID]*receiver{}
	m.mu.Unlock()
	m.cancel()
	for _, r := range pods {
		r.end()
	}
	m.wg.Wait()
	lost := 0
	for _, r := range pods {
		if depth, flight, _, _, _, _ := r.queue.report(); r.queue.config.Promise == workers.AtMostOnce {
			lost += depth + flight
		}
	}
	if lost > 0 {
		m.c.Logger.Warn("at-most-once messages lost as the agent stops", "messages", lost)
	}
	if m.log != nil {
		_ = m.log.close()
	}
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

// Close refuses further messages for a terminating pod, and moves the waiting ones to other pods.
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
	before := m.orphans[uid]
	delete(m.orphans, uid)
	m.mu.Unlock()
	if r != nil {
		r.end()
		r.queue.release()
		_, _, _, _, c, _ := r.queue.report()
		m.mu.Lock()
		m.ended.add(c)
		m.mu.Unlock()
	}
	for _, s := range before {
		m.rehome(s)
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

// LogDir returns the log's directory below the agent's data directory.
func LogDir(dir string) string { return filepath.Join(dir, "messages") }

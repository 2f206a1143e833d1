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
	// Do sends a request whose URL has only a path. With a token it has the token's permissions, otherwise the
	// node's.
	Do(req *http.Request, token string) (*http.Response, error)
}

// Config of a Manager. All fields are required but Metrics.
type Config struct {
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// Dir is where the messages are that must not be lost. It is made when there is one.
	Dir string
	// API is used for messages that pods send, and for those that must go to another pod; nil if there is none (in
	// tests).
	API API
	// Token returns a token of the pod's service account.
	Token func(ctx context.Context, p *corev1.Pod) (string, error)
	// Changed is called when Report of a pod returns something else.
	Changed func(types.UID)
	// Event records an event on a pod.
	Event   func(p *corev1.Pod, kind, reason, message string)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Manager has the queues of the node's pods. Safe for concurrent use.
type Manager struct {
	c      Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	bytes  *budget
	sends  chan struct{} // limits the messages that are sent elsewhere at once
	listen func(ctx context.Context, uid string) (net.Listener, error)

	mu      sync.Mutex
	stopped bool
	pods    map[types.UID]*receiver
	log     *messageLog                 // nil until there is a message for it
	orphans map[types.UID][]*stored     // messages in the log whose pod is not here yet
	counted map[workers.Failure]float64 // messages without a waiting sender that were given up
	ended   counters                    // of queues that are gone
}

// New returns a Manager. Start reads what an earlier one has left.
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

// Start reads the messages that must not be lost.
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

// Stop ends everything that runs in this process. Messages that must not be lost stay in the log.
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

// begin reports whether something may run in the background, which must call m.wg.Done at its end.
func (m *Manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopped {
		m.wg.Add(1)
	}
	return !m.stopped
}

// Observe says which container of the pod receives, and whether it runs.
func (m *Manager) Observe(uid types.UID, container string, runs bool) {
	if r := m.receiver(uid); r != nil {
		r.queue.observe(container, runs)
	}
}

// Close refuses further messages for a pod that terminates, and moves those that no program has got to other pods.
func (m *Manager) Close(uid types.UID) {
	if r := m.receiver(uid); r != nil {
		r.queue.close()
	}
}

// Release ends the queues and messages of a pod that no longer runs.
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

// Env is what a program needs to know to receive messages, for the environment of the pod's containers.
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

// LogDir is the directory of the log below the agent's directory.
func LogDir(dir string) string { return filepath.Join(dir, "messages") }

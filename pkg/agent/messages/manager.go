package messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// API sends requests to the API server.
type API interface {
	// Do sends a request whose URL has only a path. With a token it has the permissions of that, otherwise those of the node.
	Do(req *http.Request, token string) (*http.Response, error)
}

// Config of a Manager. All fields are required but Metrics.
type Config struct {
	// Enter runs f in the network namespace of a pod.
	Enter func(ctx context.Context, uid string, f func() error) error
	// Dir is where the messages are that must not be lost. It is made when there is one.
	Dir string
	// API is used for messages that pods send, and for those that must go to another pod; nil if there is none (in tests).
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
	counted map[workers.Failure]float64 // messages that nobody waited for and that were given up
	ended   counters                    // of queues that are gone
}

// receiver is a pod that receives messages.
type receiver struct {
	m      *Manager
	pod    *corev1.Pod
	ip     string
	queue  *queue
	bytes  *budget
	server *http.Server
	ctx    context.Context // done when the pod goes
	cancel context.CancelFunc
	push   *pusher // nil in mode Poll

	mu        sync.Mutex
	published workers.QueueReport
	at        time.Time   // of published
	timer     *time.Timer // until the next report
	accepts   bool
}

// reportEvery is the least time between two reports of a queue.
const reportEvery = time.Second

// New returns a Manager. Start reads what an earlier one has left.
func New(c Config) *Manager {
	m := &Manager{c: c, bytes: &budget{limit: nodeBytes}, sends: make(chan struct{}, 64), pods: map[types.UID]*receiver{}, counted: map[workers.Failure]float64{}}
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
		m.c.Logger.Warn("messages without a promise were lost as the agent stops", "messages", lost)
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

// Synced is called once all pods of the node are known: messages for others are sent to other pods of their workers.
func (m *Manager) Synced(known func(types.UID) bool) {
	m.mu.Lock()
	var lost []*stored
	for uid, list := range m.orphans {
		if !known(uid) {
			lost = append(lost, list...)
			delete(m.orphans, uid)
		}
	}
	m.mu.Unlock()
	for _, s := range lost {
		m.rehome(s)
	}
}

// rehome sends a message from the log elsewhere.
func (m *Manager) rehome(s *stored) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Pod, UID: types.UID(s.UID)}}
	m.background(func() { m.elsewhere(p, s.Queue, m.entryOf(s), "") })
}

// entryOf makes a message from the log. Its payload counts against the budget if there is room, since it is here already.
func (m *Manager) entryOf(s *stored) *entry {
	p := &payload{data: s.payload}
	if n := int64(len(s.payload)) + overhead; m.bytes.take(n) {
		p.bytes, p.held = m.bytes, n
	}
	return &entry{seq: s.seq, expires: s.Expires, Message: Message{ID: s.ID, ContentType: s.ContentType, Trace: s.Trace, Attempts: s.Attempts, DeadLetter: s.DeadLetter, Receipt: s.Receipt, payload: p}}
}

// Setup makes the pod's queue, if the pod asks for one, and what its program receives with. It is idempotent. The pod's network must be up
// and none of its containers started since.
func (m *Manager) Setup(ctx context.Context, p *corev1.Pod, ip string) error {
	config, err := workers.ParseQueue(p)
	if config == nil || err != nil {
		return err
	}
	m.mu.Lock()
	if m.stopped || m.pods[p.UID] != nil {
		m.mu.Unlock()
		return nil
	}
	m.mu.Unlock()
	l, err := m.listen(ctx, string(p.UID))
	if err != nil {
		return fmt.Errorf("messages: listen on %s in the pod's network: %w", workers.RuntimeAddress, err)
	}
	r := &receiver{m: m, pod: p, ip: ip, bytes: &budget{parent: m.bytes, limit: podBytes}, accepts: true}
	r.ctx, r.cancel = context.WithCancel(m.ctx)
	r.queue = newQueue(*config, r)
	r.server = r.newServer()
	if config.Mode == workers.ModePush {
		r.push = newPusher(r)
	}
	m.mu.Lock()
	if m.stopped || m.pods[p.UID] != nil {
		m.mu.Unlock()
		r.cancel()
		return l.Close()
	}
	m.pods[p.UID] = r
	before := m.orphans[p.UID]
	delete(m.orphans, p.UID)
	m.backgroundLocked(func() { _ = r.server.Serve(r.limited(l)) })
	if r.push != nil {
		m.backgroundLocked(r.push.run)
	}
	m.mu.Unlock()
	for i := len(before) - 1; i >= 0; i-- { // each before the ones that came later
		e := m.entryOf(before[i])
		if e.Attempts >= config.MaxAttempts {
			m.background(func() {
				r.giveUp(e, Outcome{Failure: workers.ReceiverLost, Text: "the program or the node's agent ended while it had the message"})
			})
			continue
		}
		r.queue.offer(e, true)
	}
	return nil
}

func (m *Manager) listenInPod(ctx context.Context, uid string) (l net.Listener, err error) {
	err = m.c.Enter(ctx, uid, func() (err error) {
		l, err = net.Listen("tcp", workers.RuntimeAddress) // an address: nothing is looked up on another thread
		return err
	})
	return l, err
}

// Observe tells which container of the pod receives, and whether it runs.
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

// Release ends what there is of a pod, of which nothing runs any longer.
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

func (r *receiver) end() {
	r.cancel()
	_ = r.server.Close()
	r.mu.Lock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
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

// Condition is the state of the pod's queue; nil if it has none. It changes at most once a second.
func (m *Manager) Condition(uid types.UID) *corev1.PodCondition {
	r := m.receiver(uid)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	report, accepts := r.published, r.accepts
	r.mu.Unlock()
	text, err := json.Marshal(report)
	if err != nil {
		return nil
	}
	c := &corev1.PodCondition{Type: workers.QueueCondition, Status: corev1.ConditionTrue, Reason: "Accepting", Message: string(text)}
	if !accepts {
		c.Status, c.Reason = corev1.ConditionFalse, "Terminating"
	}
	return c
}

// changed implements events: it publishes a report, now or when one is due.
func (r *receiver) changed() {
	if r.push != nil {
		r.push.wake()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		r.timer = time.AfterFunc(max(time.Until(r.at.Add(reportEvery)), 0), r.publish)
	}
}

func (r *receiver) publish() {
	depth, flight, _, last, _, closed := r.queue.report()
	report := workers.QueueReport{Depth: int32(depth), InFlight: int32(flight)}
	if !last.IsZero() {
		report.Last = &metav1.Time{Time: last.Truncate(time.Second)}
	}
	r.mu.Lock()
	r.timer, r.at = nil, time.Now()
	same := report.Depth == r.published.Depth && report.InFlight == r.published.InFlight && report.Last.Equal(r.published.Last) && r.accepts == !closed
	r.published, r.accepts = report, !closed
	r.mu.Unlock()
	if !same {
		r.m.c.Changed(r.pod.UID)
	}
}

// Target is the pod that a message is for.
type Target struct {
	Namespace, Name string
	UID             types.UID
}

// Deliver queues a message and, if wait is true, waits for its outcome until ctx is done. It takes over the payload.
func (m *Manager) Deliver(ctx context.Context, t Target, msg Message, wait bool) Outcome {
	return m.DeliverAll(ctx, t, []Message{msg}, wait)[0]
}

// DeliverAll delivers messages as Deliver does. Those that must not be lost are written to disk together.
func (m *Manager) DeliverAll(ctx context.Context, t Target, list []Message, wait bool) []Outcome {
	out := make([]Outcome, len(list))
	r := m.receiver(t.UID)
	if r == nil || r.pod.Namespace != t.Namespace || r.pod.Name != t.Name {
		for i := range list {
			list[i].payload.release()
			out[i] = Outcome{Failure: workers.NoReceiver, Text: "the pod has no message queue on its node", Untouched: true}
		}
		return out
	}
	entries := make([]*entry, len(list))
	for i := range list {
		entries[i] = &entry{Message: list[i]}
		if wait {
			entries[i].reply = make(chan Outcome, 1)
		}
	}
	if !wait && r.queue.config.Promise == workers.AtLeastOnce {
		m.persist(r, entries, out)
	}
	for i, e := range entries {
		if out[i].Failure != "" {
			e.payload.release()
			continue
		}
		if f := r.queue.offer(e, false); f != "" {
			if e.seq != 0 {
				m.log.done(e.seq)
			}
			e.payload.release()
			text := "the pod terminates"
			if f == workers.QueueFull {
				text = fmt.Sprintf("%d messages wait", r.queue.config.Limit)
			}
			out[i] = Outcome{Failure: f, Text: text, Untouched: true}
		}
	}
	if !wait {
		return out
	}
	for i, e := range entries {
		if out[i].Failure != "" {
			continue
		}
		select {
		case out[i] = <-e.reply:
			continue
		case <-ctx.Done():
		}
		r.queue.abandon(e)
		out[i] = Outcome{Failure: workers.HandlerTimeout, Text: "the sender's deadline has passed"}
	}
	return out
}

// persist writes messages to the log, and sets the outcomes of those that could not be written.
func (m *Manager) persist(r *receiver, entries []*entry, out []Outcome) {
	expires := time.Now().Add(r.queue.config.MaxWait())
	var mark uint64
	var err error
	for i, e := range entries {
		var at uint64
		e.expires = expires
		e.seq, at, err = m.log.write(&stored{Namespace: r.pod.Namespace, Pod: r.pod.Name, UID: string(r.pod.UID), Queue: r.queue.config, ID: e.ID,
			ContentType: e.ContentType, Trace: e.Trace, DeadLetter: e.DeadLetter, Receipt: e.Receipt, Attempts: e.Attempts, Expires: e.expires, payload: e.payload.data})
		if err != nil {
			out[i] = Outcome{Failure: workers.QueueFull, Text: err.Error(), Untouched: true}
			continue
		}
		mark = at
	}
	if mark != 0 {
		if syncErr := m.log.sync(mark); syncErr != nil {
			err = syncErr
			for i, e := range entries {
				if e.seq != 0 {
					out[i] = Outcome{Failure: workers.QueueFull, Text: err.Error(), Untouched: true}
				}
			}
		}
	}
	if err != nil && !errors.Is(err, errLogFull) {
		m.c.Logger.Warn("could not write message", "pod", r.pod.Namespace+"/"+r.pod.Name, "error", err)
	}
}

// LogDir is the directory of the log below that of the agent.
func LogDir(dir string) string { return filepath.Join(dir, "messages") }

// attempt implements events.
func (r *receiver) attempt(e *entry) {
	if e.seq != 0 {
		r.m.log.try(e.seq, e.Attempts)
	}
}

// finished implements events.
func (r *receiver) finished(e *entry) {
	if e.seq != 0 {
		r.m.log.done(e.seq)
	}
	e.payload.release()
}

// undeliverable implements events.
func (r *receiver) undeliverable(e *entry, o Outcome) { r.m.background(func() { r.giveUp(e, o) }) }

// moved implements events.
func (r *receiver) moved(e *entry) {
	r.m.background(func() { r.m.elsewhere(r.pod, r.queue.config, e, "") })
}

// giveUp sends a message that failed to the dead-letter worker, or drops it.
func (r *receiver) giveUp(e *entry, o Outcome) {
	why := string(o.Failure) + ": " + o.Text
	if r.queue.config.DeadLetter != "" {
		r.m.elsewhere(r.pod, r.queue.config, e, why)
		return
	}
	r.m.drop(r.pod, e, o.Failure, why)
}

// drop ends a message without success.
func (m *Manager) drop(p *corev1.Pod, e *entry, f workers.Failure, why string) {
	if m.ctx.Err() != nil && e.seq != 0 {
		return // it is in the log, for the next agent
	}
	m.mu.Lock()
	m.counted[f]++
	m.mu.Unlock()
	m.c.Event(p, corev1.EventTypeWarning, "MessageLost", fmt.Sprintf("A message was dropped after %d attempts: %s", e.Attempts, why))
	m.c.Logger.Info("message dropped", "pod", p.Namespace+"/"+p.Name, "id", e.ID, "attempts", e.Attempts, "reason", why)
	if e.seq != 0 {
		m.log.done(e.seq)
	}
	e.payload.release()
}

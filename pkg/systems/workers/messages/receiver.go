package messages

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

type receiver struct {
	m      *Manager
	pod    *corev1.Pod
	ip     string
	queue  *queue
	bytes  *budget
	server *http.Server
	ctx    context.Context // done when the pod is removed
	cancel context.CancelFunc
	push   *pusher // nil in mode Poll

	mu        sync.Mutex
	published workers.QueueReport
	at        time.Time   // when published was set
	timer     *time.Timer // until the next report
	accepts   bool
}

// reportEvery is the minimum time between two reports of a queue.
const reportEvery = time.Second

// Setup creates the pod's queue and its Runtime API server, if the pod asks for a queue. It is idempotent. Call it when
// the pod's network is up, before its containers start.
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
	for i := len(before) - 1; i >= 0; i-- { // newest first: each goes to the front
		e := m.entryOf(before[i])
		if e.Attempts >= config.MaxAttempts {
			m.background(func() {
				r.giveUp(e, Outcome{
					Failure: workers.ReceiverLost, Text: "the program or the node's agent ended while it had the message",
				})
			})
			continue
		}
		r.queue.offer(e, true)
	}
	return nil
}

func (m *Manager) listenInPod(ctx context.Context, uid string) (l net.Listener, err error) {
	err = m.c.Enter(ctx, uid, func() (err error) {
		l, err = net.Listen("tcp", workers.RuntimeAddress) // an IP address: no lookup on a thread outside the namespace
		return err
	})
	return l, err
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

// Condition returns the state of the pod's queue, or nil if it has none. It changes at most once a second.
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
	c := &corev1.PodCondition{
		Type:    workers.QueueCondition,
		Status:  corev1.ConditionTrue,
		Reason:  "Accepting",
		Message: string(text),
	}
	if !accepts {
		c.Status, c.Reason = corev1.ConditionFalse, "Terminating"
	}
	return c
}

// changed implements events: it publishes a report, at most one per reportEvery.
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
	same := report.Depth == r.published.Depth && report.InFlight == r.published.InFlight &&
		report.Last.Equal(r.published.Last) && r.accepts == !closed
	r.published, r.accepts = report, !closed
	r.mu.Unlock()
	if !same {
		r.m.c.Changed(r.pod.UID)
	}
}

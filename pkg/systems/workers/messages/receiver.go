package messages

import (
	"context"
	"fmt"
	"net"
	"net/http"

	corev1 "k8s.io/api/core/v1"

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

}

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
	r := &receiver{m: m, pod: p, ip: ip, bytes: &budget{parent: m.bytes, limit: podBytes}}
	r.ctx, r.cancel = context.WithCancel(m.ctx)
	r.queue = newQueue(*config)
	r.server = r.newServer()
	if config.Mode == workers.ModePush {
		r.push = newPusher(r)
		r.queue.more = r.push.wake
	}
	m.mu.Lock()
	if m.stopped || m.pods[p.UID] != nil {
		m.mu.Unlock()
		r.cancel()
		return l.Close()
	}
	m.pods[p.UID] = r
	m.backgroundLocked(func() { _ = r.server.Serve(r.limited(l)) })
	if r.push != nil {
		m.backgroundLocked(r.push.run)
	}
	m.mu.Unlock()
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
}

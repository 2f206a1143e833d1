package messages

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Synced is called once all pods of the node are known. It sends the logged messages of unknown pods to other pods of
// the same workers.
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

// rehome sends a message from the log to another pod.
func (m *Manager) rehome(s *stored) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Pod, UID: types.UID(s.UID)}}
	m.background(func() { m.elsewhere(p, s.Queue, m.entryOf(s), "") })
}

// entryOf returns a message from the log. Its payload counts against the budget only if there is room, because it is in
// memory already.
func (m *Manager) entryOf(s *stored) *entry {
	p := &payload{data: s.payload}
	if n := int64(len(s.payload)) + overhead; m.bytes.take(n) {
		p.bytes, p.held = m.bytes, n
	}
	return &entry{
		seq:     s.seq,
		expires: s.Expires,
		Message: Message{
			ID:          s.ID,
			ContentType: s.ContentType,
			Trace:       s.Trace,
			Attempts:    s.Attempts,
			DeadLetter:  s.DeadLetter,
			Receipt:     s.Receipt,
			payload:     p,
		},
	}
}

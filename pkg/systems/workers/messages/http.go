package messages

import (
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

var _ part.Part = (*Manager)(nil)

// The following methods of part.Part do nothing: pods with queues have no condition, and their logs are not kept.
func (m *Manager) ConditionType() corev1.PodConditionType       { return "" }
func (m *Manager) Condition(types.UID) *corev1.PodCondition     { return nil }
func (m *Manager) Synced(func(types.UID) bool)                  {}
func (m *Manager) Owner(*corev1.Pod) string                     { return "" }
func (m *Manager) Keep(string, string, types.UID, string) error { return nil }

// Routes implements part.Part: it serves messages for a pod.
func (m *Manager) Routes() []part.Route {
	return []part.Route{{Pattern: "POST /messages/{namespace}/{pod}/{uid}", Handler: m.serve}}
}

func (m *Manager) serve(w http.ResponseWriter, r *http.Request) {
	t := Target{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod"), UID: types.UID(r.PathValue("uid"))}
	msg := Message{
		ID: r.Header.Get(workers.HeaderID), ContentType: r.Header.Get("Content-Type"), Trace: r.Header.Get(headerTrace),
		DeadLetter: r.Header.Get(workers.HeaderDeadLetter), Attempt: 1,
	}
	if n, err := strconv.ParseInt(r.Header.Get(workers.HeaderAttempt), 10, 32); err == nil && n > 0 {
		msg.Attempt = int32(n)
	}
	if d, err := time.ParseDuration(r.Header.Get(workers.HeaderTimeout)); err == nil && d > 0 {
		msg.Deadline = time.Now().Add(d)
	}
	m.Receive(w, r, t, msg)
}

// headerTrace is passed on unchanged (W3C Trace Context).
const headerTrace = "Traceparent"

package messages

import (
	"context"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

var _ part.Part = (*Manager)(nil)

// ConditionType implements part.Part.
func (m *Manager) ConditionType() corev1.PodConditionType { return workers.QueueCondition }

// Owner and Keep implement part.Part. They do nothing, because pods' logs are not kept.
func (m *Manager) Owner(*corev1.Pod) string                     { return "" }
func (m *Manager) Keep(string, string, types.UID, string) error { return nil }

// Routes implements part.Part: it serves messages and batches of messages for a pod.
func (m *Manager) Routes() []part.Route {
	const pod = "/{namespace}/{pod}/{uid}"
	return []part.Route{
		{Pattern: "POST /messages" + pod, Handler: func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, m.Receive) }},
		{
			Pattern: "POST /messageBatches" + pod,
			Handler: func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, m.ReceiveBatch) },
		},
	}
}

func (m *Manager) serve(w http.ResponseWriter, r *http.Request,
	receive func(context.Context, http.ResponseWriter, *http.Request, Target, Message, bool)) {
	t := Target{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod"), UID: types.UID(r.PathValue("uid"))}
	msg := Message{
		ID: r.Header.Get(workers.HeaderID), ContentType: r.Header.Get("Content-Type"), Trace: r.Header.Get("Traceparent"),
		DeadLetter: r.Header.Get(workers.HeaderDeadLetter), Receipt: r.Header.Get(workers.HeaderReceipt),
	}
	if n, err := strconv.ParseInt(r.Header.Get(workers.HeaderAttempt), 10, 32); err == nil && n > 0 {
		msg.Attempts = int32(n)
	}
	wait := r.Header.Get(workers.HeaderWait) == "true"
	ctx := r.Context()
	if d, err := time.ParseDuration(r.Header.Get(workers.HeaderTimeout)); err == nil && d > 0 && wait {
		msg.Deadline = time.Now().Add(d)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, msg.Deadline)
		defer cancel()
	}
	receive(ctx, w, r, t, msg, wait)
}

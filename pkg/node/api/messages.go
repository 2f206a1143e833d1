package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/messages"
)

// LocalMessages takes messages from the API server in the same process, without authentication.
type LocalMessages struct {
	http.ServeMux
	messages *messages.Manager
}

// LocalMessages returns it; it is the same always.
func (s *Server) LocalMessages() *LocalMessages { return &s.local }

// Accept queues messages in their order, and reports each one's outcome.
func (l *LocalMessages) Accept(list []*workers.Delivery) {
	if l.messages != nil {
		l.messages.Accept(list)
		return
	}
	for _, d := range list {
		d.Done(workers.Delivered{BatchOutcome: workers.BatchOutcome{Failure: workers.NoReceiver, Text: "the node takes no messages", Untouched: true}})
	}
}

// message queues a message for a pod, and responds with its reply if it is asked for.
func (s *Server) message(w http.ResponseWriter, r *http.Request) {
	s.deliver(w, r, (*messages.Manager).Receive)
}

// messageBatch does so with the messages of a batch.
func (s *Server) messageBatch(w http.ResponseWriter, r *http.Request) {
	s.deliver(w, r, (*messages.Manager).ReceiveBatch)
}

func (s *Server) deliver(w http.ResponseWriter, r *http.Request, receive func(*messages.Manager, context.Context, http.ResponseWriter, *http.Request, messages.Target, messages.Message, bool)) {
	if s.c.Messages == nil {
		http.NotFound(w, r)
		return
	}
	t := messages.Target{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod"), UID: types.UID(r.PathValue("uid"))}
	m := messages.Message{ID: r.Header.Get(workers.HeaderID), ContentType: r.Header.Get("Content-Type"), Trace: r.Header.Get("Traceparent"),
		DeadLetter: r.Header.Get(workers.HeaderDeadLetter), Receipt: r.Header.Get(workers.HeaderReceipt)}
	if n, err := strconv.ParseInt(r.Header.Get(workers.HeaderAttempt), 10, 32); err == nil && n > 0 {
		m.Attempts = int32(n)
	}
	wait := r.Header.Get(workers.HeaderWait) == "true"
	ctx := r.Context()
	if d, err := time.ParseDuration(r.Header.Get(workers.HeaderTimeout)); err == nil && d > 0 && wait {
		m.Deadline = time.Now().Add(d)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, m.Deadline)
		defer cancel()
	}
	receive(s.c.Messages, ctx, w, r, t, m, wait)
}

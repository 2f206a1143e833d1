package workers

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// maxListed bounds the messages of one response.
const maxListed = 500

// manage serves the subresource queue of a Worker:
//
//	GET queue?state=STATE&limit=N&continue=C   a QueuedMessages without payloads
//	GET queue/ID                               a QueuedMessage with its payload
//	DELETE queue[?state=dead]                  removes the messages that no program has, or the dead ones
//	POST queue[/ID]                            has dead messages delivered again
func (m *messaging) manage(_ *http.Request, on kind.Connection) (http.Handler, error) {
	s, err := m.sender(on)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		out, err := s.managed(req)
		if err != nil {
			on.Fail(w, req, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	}), nil
}

var states = []queue.State{queue.Waiting, queue.Delayed, queue.Blocked, queue.InFlight, queue.Dead}

func (s sender) managed(req *http.Request) (any, error) {
	r, namespace, name := s.on.Target()
	worker, ok := s.on.Read(workerKind, namespace, name).(*workers.Worker)
	if !ok {
		return nil, apierrors.NewNotFound(r.GR(), name)
	}
	if err := s.home(req.Context(), worker); err != nil {
		return nil, err
	}
	k, path := queue.Key{Namespace: namespace, Worker: name}, s.on.Path()
	if err := s.dispatch.Open(k, workers.QueueOf(worker)); err != nil {
		return nil, refused(address{key: k}, err)
	}
	id := ""
	if len(path) > 0 {
		id = path[0]
	}
	state := queue.State(req.URL.Query().Get("state"))
	switch {
	case len(path) > 1 || id != "" && req.Method == http.MethodDelete:
		return nil, apierrors.NewNotFound(r.GR(), name+"/queue/"+id)
	case state != "" && !slices.Contains(states, state):
		return nil, apierrors.NewBadRequest("state must be waiting, delayed, blocked, in flight or dead")
	case req.Method == http.MethodDelete && state != "" && state != queue.Dead:
		return nil, apierrors.NewBadRequest("only messages of the state dead, or of all states, can be purged")
	case req.Method == http.MethodDelete:
		return workers.QueueChange{Messages: s.dispatch.Purge(k, state == queue.Dead)}, nil
	case req.Method == http.MethodPost:
		n := s.dispatch.Redrive(k, id)
		if id != "" && n == 0 {
			return nil, apierrors.NewNotFound(r.GR(), name+"/queue/"+id)
		}
		return workers.QueueChange{Messages: n}, nil
	case id != "":
		m, ok := s.messages.Find(k, id)
		if !ok {
			return nil, apierrors.NewNotFound(r.GR(), name+"/queue/"+id)
		}
		return queued(m), nil
	}
	return s.list(req, k, state)
}

func (s sender) list(req *http.Request, k queue.Key, state queue.State) (any, error) {
	number := func(name string, most uint64) (uint64, error) {
		text := req.URL.Query().Get(name)
		if text == "" {
			return 0, nil
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, apierrors.NewBadRequest(name + " must be a number")
		}
		return min(n, most), nil
	}
	after, err := number("continue", 1<<63)
	if err != nil {
		return nil, err
	}
	limit, err := number("limit", maxListed)
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = maxListed
	}
	list := workers.QueuedMessages{Items: []workers.QueuedMessage{}}
	for _, m := range s.messages.List(k, state, after, int(limit)) {
		list.Items = append(list.Items, queued(m))
		if len(list.Items) == int(limit) {
			list.Continue = strconv.FormatUint(m.Seq, 10)
		}
	}
	return list, nil
}

func queued(m queue.Message) workers.QueuedMessage {
	due, expires := (*metav1.Time)(nil), &metav1.Time{Time: m.Expires}
	switch m.State {
	case queue.Delayed:
		due = &metav1.Time{Time: m.Due}
	case queue.Dead:
		expires = nil
	}
	return workers.QueuedMessage{
		ID: m.ID, DedupID: m.DedupID, Key: m.OrderKey, State: string(m.State), Pod: m.Target, Attempts: m.Attempts,
		Size: m.Size, ContentType: m.ContentType,
		Arrived: metav1.NewTime(m.Arrived), Expires: expires, Due: due, Error: m.Error,
		DeadLetter: m.DeadLetter, Payload: m.Payload,
	}
}

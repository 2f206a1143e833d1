package workers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/connlimit"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

const (
	// maxCall is the longest time that a caller over an Ingress may wait for the reply. The default is defaultWait.
	maxCall = 5 * time.Minute
	// receiveTimeout bounds the time in which the body of a call must arrive.
	receiveTimeout = 30 * time.Second
	// receiveUnit is the unit in which bodies that arrive are counted, receiveUnits the units of all calls and
	// receiveUnitsEach the units of a namespace: 64 and 32 MiB.
	receiveUnit      = 16 << 10
	receiveUnits     = 4096
	receiveUnitsEach = 2048
)

// receiving counts the bytes of calls' bodies that have not reached a queue.
type receiving struct {
	mu    sync.Mutex
	share *connlimit.Share[string] // by namespace
}

func newReceiving() *receiving {
	return &receiving{share: connlimit.NewShare[string](receiveUnits, receiveUnitsEach)}
}

// callHeaders are the headers of a call that count for its message.
var callHeaders = []string{
	"Content-Type", "Traceparent", workers.HeaderDedupID, workers.HeaderOrderKey, workers.HeaderEventKey,
	workers.HeaderEventID, workers.HeaderEventSource, workers.HeaderEventTrace,
}

// caller returns the handler of a worker for Ingresses: the body of a POST is the message, the reply the response. The
// path and the query are not part of the message.
func (m *messaging) caller(worker types.NamespacedName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := m.call(public{w}, req, worker); err != nil {
			refuseCall(public{w}, err)
		}
	})
}

func (m *messaging) call(w http.ResponseWriter, req *http.Request, worker types.NamespacedName) error {
	q := m.queues.Load()
	if q == nil {
		return failed(workers.NoReceiver, http.StatusServiceUnavailable, "this server's message queues start")
	}
	to, err := q.address(req.Context(), worker)
	if err != nil {
		return err
	}
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return failed("MethodNotAllowed", http.StatusMethodNotAllowed, "call a worker with POST: the body is the message")
	}
	query, err := callQuery(req.Header)
	if err != nil {
		return err
	}
	body := &arriving{of: m.receiving, body: req.Body, namespace: worker.Namespace, until: time.Now().Add(receiveTimeout)}
	defer body.end()
	message := (&http.Request{
		Method: http.MethodPost, URL: &url.URL{RawQuery: query.Encode()}, Header: http.Header{}, Body: io.NopCloser(body),
		ContentLength: req.ContentLength,
	}).WithContext(req.Context())
	for _, name := range callHeaders {
		if v := req.Header.Values(name); len(v) > 0 {
			message.Header[name] = v
		}
	}
	s := sender{queues: q, find: func(context.Context) (address, error) { return to, nil }}
	err = s.send(w, message)
	if body.failed != nil {
		return body.failed
	}
	return err
}

// callQuery returns the parameters of a call as the query of a message: a caller waits for the reply unless it says
// otherwise.
func callQuery(h http.Header) (url.Values, error) {
	query := url.Values{"wait": {"true"}}
	if v := h.Get(workers.HeaderWait); v != "" {
		query.Set("wait", v)
	}
	if v := h.Get(workers.HeaderTimeout); v != "" {
		if d, err := time.ParseDuration(v); err != nil || d <= 0 || d > maxCall {
			return nil, apierrors.NewBadRequest(workers.HeaderTimeout + " must be a duration above 0 and up to " +
				maxCall.String())
		}
		query.Set("timeout", v)
	}
	return query, nil
}

// callTexts are what callers learn about failures. What a program reports is not for them.
var callTexts = map[workers.Failure]string{
	workers.NoReceiver:       "the worker cannot take the message now",
	workers.QueueUnavailable: "the worker cannot take the message now",
	workers.QueueFull:        "the worker's queue is full: try again later",
	workers.ReceiverLost:     "the program was lost while it had the message: it may have handled it",
	workers.HandlerFailed:    "the program failed to handle the message",
	workers.HandlerTimeout:   "the program did not reply in time",
}

// refuseCall responds with the error of a call.
func refuseCall(w http.ResponseWriter, err error) {
	code, text := http.StatusInternalServerError, "internal error"
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		code, text = int(status.ErrStatus.Code), status.ErrStatus.Message
		f := workers.Failure(status.ErrStatus.Reason)
		if t, ok := callTexts[f]; ok {
			text = t
		}
		switch {
		case f == workers.HandlerFailed:
			code = http.StatusBadGateway // the server itself is well
		case code == http.StatusNotFound:
			text = "the worker of this path does not exist"
		case code == http.StatusTooManyRequests:
			w.Header().Set("Retry-After", "1")
		}
	}
	http.Error(w, text, code)
}

// public is the response to a caller, who need not know the cluster's pods and the programs' errors.
type public struct{ http.ResponseWriter }

func (w public) WriteHeader(code int) {
	w.Header().Del(workers.HeaderPod)
	w.Header().Del(workers.HeaderErrorType)
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w public) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// arriving is the body of a call. It counts until it has been read, since the queue counts it then.
type arriving struct {
	of        *receiving
	body      io.Reader
	namespace string
	until     time.Time
	size      int
	units     int
	failed    error // why this server does not read on
}

func (a *arriving) Read(p []byte) (int, error) {
	if a.failed == nil && time.Now().After(a.until) {
		a.failed = failed("Timeout", http.StatusRequestTimeout, "the body did not arrive within "+receiveTimeout.String())
	}
	if a.failed == nil && !a.hold() {
		a.failed = apierrors.NewTooManyRequests("too many messages arrive for the namespace's workers", 1)
	}
	if a.failed != nil {
		return 0, a.failed
	}
	n, err := a.body.Read(p)
	a.size += n
	if err != nil {
		a.end()
	}
	return n, err
}

// hold counts the bytes that were read and the unit that is read next. Bytes beyond a message's limit are not kept.
func (a *arriving) hold() bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	for a.units <= min(a.size, workers.MaxPayload)/receiveUnit {
		if !a.of.share.Enter(a.namespace) {
			return false
		}
		a.units++
	}
	return true
}

// end stops counting. It may be called repeatedly.
func (a *arriving) end() {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	for ; a.units > 0; a.units-- {
		a.of.share.Leave(a.namespace)
	}
}

// post queues a message for a worker. A message whose DedupID the queue knows is queued already.
func (q *queues) post(ctx context.Context, worker types.NamespacedName, m queue.Message) error {
	m.ID = uuid.NewString()
	to, errs := q.postAll(ctx, worker, []dispatch.Message{{Message: m}})
	if errs[0] != nil && to.config != nil {
		return refused(to, errs[0])
	}
	return errs[0]
}

// postAll does the same for several messages, and returns an error for each. It returns no address if this server does
// not keep the queue.
func (q *queues) postAll(ctx context.Context, worker types.NamespacedName, list []dispatch.Message) (address, []error) {
	to, err := q.address(ctx, worker)
	if err != nil {
		return address{}, slices.Repeat([]error{err}, len(list))
	}
	errs := q.dispatch.Send(to.key, to.config, list)()
	for i, err := range errs {
		var repeated *queue.DuplicateError
		if errors.As(err, &repeated) {
			errs[i] = nil
		}
	}
	return to, errs
}

// address returns the queue of a worker, which this server keeps.
func (q *queues) address(ctx context.Context, worker types.NamespacedName) (address, error) {
	var w workers.Worker
	if err := q.host.Client.Cache().Get(ctx, worker, &w); err != nil {
		return address{}, err
	}
	return address{key: queue.Key{Namespace: w.Namespace, Worker: w.Name}, config: workers.QueueOf(&w)}, q.home(ctx, &w)
}

// home returns nil if this server keeps the worker's queue, and records that before the first message. A server that is
// no longer in the cluster is replaced.
func (q *queues) home(ctx context.Context, w *workers.Worker) error {
	if w.Status.QueueServer == q.host.Name {
		return nil
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if q.elsewhere(ctx, w) {
			return nil
		}
		next := w.DeepCopy()
		next.Status.QueueServer = q.host.Name
		err := q.host.Client.Status().Update(ctx, next)
		if apierrors.IsConflict(err) {
			var now workers.Worker
			if err := q.host.Client.Get(ctx, client.ObjectKeyFromObject(w), &now); err != nil {
				return err
			}
			w = &now
		}
		return err
	})
	if err == nil && q.elsewhere(ctx, w) {
		err = failed(workers.NoReceiver, http.StatusServiceUnavailable, "server "+w.Status.QueueServer+" keeps the "+
			"queue of worker "+w.Name+": send to that server, or delete its Node if it does not return")
	}
	return err
}

// elsewhere reports whether another server keeps the queue of a worker.
func (q *queues) elsewhere(ctx context.Context, w *workers.Worker) bool {
	at := w.Status.QueueServer
	return at != "" && at != q.host.Name && !q.host.Alone() &&
		!apierrors.IsNotFound(q.host.Client.Cache().Get(ctx, client.ObjectKey{Name: at}, &corev1.Node{}))
}

package workers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
	"github.com/coracle-dev/coracle/pkg/systems/workers/parts"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// sender sends the messages of one request or connection.
type sender struct {
	*queues
	on kind.Connection
	// find returns the queue for a message.
	find func(ctx context.Context) (address, error)
}

// ServeHTTP implements http.Handler.
func (s sender) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if err := s.send(w, req); err != nil {
		s.on.Fail(w, req, err)
	}
}

// failed returns the error of a message as a Status whose reason is the Failure.
func failed(f workers.Failure, code int, message string) *apierrors.StatusError {
	status := metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: metav1.StatusReason(f), Message: message,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseType(f), Message: message}}},
	}
	if f == workers.QueueFull {
		status.Details.RetryAfterSeconds = 1
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// refused returns the error of a message that the queue did not accept.
func refused(a address, err error) error {
	f := workers.QueueFull
	text := fmt.Sprintf("queue %s: %v", a.key, err)
	switch {
	case errors.Is(err, queue.ErrFull):
		text = fmt.Sprintf("queue %s is full: it has at most %d messages and 64 MiB", a.key, a.config.Limit)
	case errors.Is(err, queue.ErrClosed), errors.Is(err, queue.ErrUnavailable):
		f = workers.QueueUnavailable
	case errors.Is(err, queue.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(text)
	}
	return failed(f, f.Code(), text)
}

// fromNode reports whether a node sends the message under its own name. Former versions let nodes send messages, with a
// role that clusters may still have.
func fromNode(req *http.Request) bool {
	u, ok := request.UserFrom(req.Context())
	return ok && slices.Contains(u.GetGroups(), user.NodesGroup)
}

func (s sender) send(w http.ResponseWriter, req *http.Request) error {
	if fromNode(req) {
		r, _, name := s.on.Target()
		return apierrors.NewForbidden(r.GR(), name, errors.New("nodes may not send messages"))
	}
	if streamed(req) {
		return s.serveStream(w, req)
	}
	if req.ContentLength > workers.MaxPayload {
		if req.Header.Get("Expect") == "" { // some clients send everything before they read the status
			_, _ = io.CopyN(io.Discard, req.Body, 4*workers.MaxPayload)
		}
		return errTooLarge()
	}
	wait, timeout, err := waitOf(req)
	if err != nil {
		return err
	}
	batch, err := flagOf(req.URL.Query(), "batch")
	if err != nil {
		return err
	}
	m := dispatch.Message{Message: queue.Message{ID: uuid.NewString(), ContentType: req.Header.Get("Content-Type")}}
	switch {
	case len(m.ContentType) > maxContentType:
		return apierrors.NewBadRequest("Content-Type has at most " + strconv.Itoa(maxContentType) + " bytes")
	case m.ContentType == "":
		m.ContentType = "application/octet-stream"
	}
	m.Trace = traceOf(req.Header)
	m.Payload, err = bounded.All(req.Body, workers.MaxPayload)
	var large *bounded.TooLargeError
	if errors.As(err, &large) {
		_, _ = io.CopyN(io.Discard, req.Body, 4*workers.MaxPayload)
		return errTooLarge()
	}
	if err != nil {
		return apierrors.NewBadRequest("the message could not be read: " + err.Error())
	}
	if wait {
		m.Deadline = time.Now().Add(timeout)
	}
	if err := schedule(&m.Message, req.URL.Query(), time.Now()); err != nil {
		return err
	}
	if m.DedupID, err = dedupIDOf(req, wait); err != nil {
		return err
	}
	if m.OrderKey, err = orderKeyOf(req); err != nil {
		return err
	}
	if m.OrderKey != "" && !m.Due.IsZero() {
		return apierrors.NewBadRequest("a delayed message would hold up the later ones with its key: leave out key or delay")
	}
	if batch {
		return s.sendBatch(req.Context(), w, m)
	}
	m.Parts = wait && req.Header.Get(workers.HeaderParts) != "false"
	return s.sendOne(req, w, m)
}

func errTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError("a message has at most " + strconv.Itoa(workers.MaxPayload) + " bytes")
}

// sendOne sends a message, and waits for the reply if it has a deadline.
func (s sender) sendOne(req *http.Request, w http.ResponseWriter, m dispatch.Message) error {
	ctx := req.Context()
	a, err := s.find(ctx)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set(workers.HeaderID, m.ID)
	m.Target = a.pod
	var got chan dispatch.Outcome
	if !m.Deadline.IsZero() {
		got = make(chan dispatch.Outcome, 1)
		m.Done = func(o dispatch.Outcome) { got <- o }
	}
	err = s.dispatch.Send(a.key, a.config, []dispatch.Message{m})()[0]
	var repeated *queue.DuplicateError
	if errors.As(err, &repeated) {
		h.Set(workers.HeaderID, repeated.ID)
		h.Set(workers.HeaderDuplicate, "true")
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if err != nil {
		return refused(a, err)
	}
	if got == nil {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	var o dispatch.Outcome
	select {
	case o = <-got:
	case <-ctx.Done():
		s.dispatch.Cancel(a.key, m.ID)
		o = <-got
	}
	defer o.Free()
	if o.Pod != "" {
		h.Set(workers.HeaderPod, o.Pod)
	}
	if o.Failure != "" {
		h.Set(workers.HeaderFailure, string(o.Failure))
		if o.ErrorType != "" {
			h.Set(workers.HeaderErrorType, o.ErrorType)
		}
		return failure(&o)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(workers.HeaderAttempt, strconv.Itoa(int(o.Attempts)))
	if o.ContentType == "" {
		o.ContentType = "application/octet-stream"
	}
	h.Set("Content-Type", o.ContentType)
	if o.Parts != nil {
		defer s.dispatch.Cancel(a.key, m.ID) // if the sender has gone
		sendParts(req, w, o.Parts)
		return nil
	}
	h.Set("Content-Length", strconv.Itoa(len(o.Payload)))
	w.WriteHeader(http.StatusOK)
	_, _ = io.Copy(w, bytes.NewReader(o.Payload))
	return nil
}

// sendParts sends a reply as its parts come. If it breaks off, the response ends with trailers for a sender that reads
// them (TE: trailers), and is aborted for others, so that none takes a part for the whole.
func sendParts(req *http.Request, w http.ResponseWriter, in *io.PipeReader) {
	defer in.Close()
	defer context.AfterFunc(req.Context(), func() { _ = in.Close() })()
	trailers := strings.Contains(strings.ToLower(strings.Join(req.Header.Values("Te"), ",")), "trailers")
	if trailers {
		parts.Announce(w.Header())
	}
	w.WriteHeader(http.StatusOK)
	_, err := io.CopyBuffer(parts.Flushed{ResponseWriter: w}, in, make([]byte, parts.Size))
	var broken *dispatch.BrokenError
	switch {
	case err == nil:
	case trailers && errors.As(err, &broken):
		o := &broken.Outcome
		parts.Fail(w.Header(), o.Failure, o.ErrorType, failure(o).ErrStatus.Message)
	default:
		panic(http.ErrAbortHandler)
	}
}

// failure returns the error of a message that failed.
func failure(o *dispatch.Outcome) *apierrors.StatusError {
	text := o.Text
	if o.Pod != "" {
		text = "pod " + o.Pod + ": " + text
	}
	err := failed(o.Failure, o.Failure.Code(), text)
	err.ErrStatus.Details.Causes[0].Field = o.ErrorType
	return err
}

// maxSchedule bounds the delay and the life that a sender chooses for a message.
const maxSchedule = 24 * time.Hour

// schedule sets when a message may be handled first, and when it fails if it has not been handled.
func schedule(m *queue.Message, q url.Values, now time.Time) error {
	for name, at := range map[string]*time.Time{"delay": &m.Due, "expire": &m.Expires} {
		if text := q.Get(name); text != "" {
			d, err := time.ParseDuration(text)
			if err != nil || d <= 0 || d > maxSchedule {
				return apierrors.NewBadRequest(name + " must be a duration above 0 and up to " + maxSchedule.String())
			}
			*at = now.Add(d)
		}
	}
	if !m.Expires.IsZero() && m.Expires.Before(m.Due) {
		return apierrors.NewBadRequest("expire must not be before delay")
	}
	return nil
}

// waitOf returns whether a sender waits for the reply, and its timeout: for the reply, or else for the acceptance.
func waitOf(req *http.Request) (wait bool, timeout time.Duration, err error) {
	q := req.URL.Query()
	if v := req.Header.Get(workers.HeaderWait); v != "" && !q.Has("wait") {
		q.Set("wait", v)
	}
	if wait, err = flagOf(q, "wait"); err != nil {
		return false, 0, err
	}
	text := q.Get("timeout")
	if text == "" {
		text = req.Header.Get(workers.HeaderTimeout)
	}
	timeout = defaultWait
	if text != "" {
		if timeout, err = time.ParseDuration(text); err != nil || timeout <= 0 || timeout > maxWait {
			return false, 0, apierrors.NewBadRequest("timeout must be a duration above 0 and up to " + maxWait.String())
		}
	}
	return wait, timeout, nil
}

// flagOf returns whether a query has a flag, which has no value or a true one.
func flagOf(q url.Values, name string) (bool, error) {
	if !q.Has(name) {
		return false, nil
	}
	text := q.Get(name)
	if text == "" {
		return true, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierrors.NewBadRequest(name + " must be true or false")
	}
	return on, nil
}

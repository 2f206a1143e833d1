package workers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
)

type sender struct {
	*messaging
	on         kind.Connection
	candidates func() []*corev1.Pod
	worker     string               // the service's worker; "" if there is none
	starting   func() []*corev1.Pod // candidates while a worker starts
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

func (s sender) send(w http.ResponseWriter, req *http.Request) error {
	if streamed(req) {
		return s.serveStream(w, req)
	}
	if req.ContentLength > workers.MaxPayload {
		if req.Header.Get("Expect") == "" { // some clients send everything before they read the status
			_, _ = io.CopyN(io.Discard, req.Body, 4*workers.MaxPayload)
		}
		return apierrors.NewRequestEntityTooLargeError("a message has at most " + strconv.Itoa(workers.MaxPayload) + " bytes")
	}
	wait, timeout, err := waitOf(req)
	if err != nil {
		return err
	}
	node := fromNode(req)
	batch, err := flagOf(req.URL.Query(), "batch")
	if err != nil {
		return err
	}
	if t := req.Header.Get("Content-Type"); len(t) > maxContentType {
		return apierrors.NewBadRequest("Content-Type has at most " + strconv.Itoa(maxContentType) + " bytes")
	}
	body, err := bounded.All(req.Body, workers.MaxPayload)
	var large *bounded.TooLargeError
	if errors.As(err, &large) {
		_, _ = io.CopyN(io.Discard, req.Body, 4*workers.MaxPayload)
		return apierrors.NewRequestEntityTooLargeError("a message has at most " + strconv.Itoa(workers.MaxPayload) + " bytes")
	}
	if err != nil {
		return apierrors.NewBadRequest("the message could not be read: " + err.Error())
	}
	if node {
		if _, _, name := s.on.Target(); batch || !s.mayForward(req, body, name) {
			return apierrors.NewForbidden(corev1.Resource("services"), name, errNotGiven)
		}
	}
	ctx, cancel := context.WithTimeout(req.Context(), timeout)
	defer cancel()
	deadline := time.Now().Add(timeout)
	id := uuid.NewString()
	head := s.header(req, id)
	if batch {
		return s.sendBatch(ctx, w, head, body, wait)
	}
	w.Header().Set(workers.HeaderID, id)
	return s.try(ctx, w, head, body, wait, deadline)
}

// try sends a message to one receiver after the other until one accepts it, and responds. Without receivers it wakes
// the worker.
func (s sender) try(ctx context.Context, w http.ResponseWriter, head http.Header, body []byte, wait bool,
	deadline time.Time) error {
	pods := s.candidates()
	if len(pods) == 0 {
		var err error
		if pods, err = s.wake(ctx); err != nil {
			return err
		}
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	var last error
	for _, p := range pods[:min(len(pods), mostReceivers)] {
		if wait {
			head.Set(workers.HeaderWait, "true")
			head.Set(workers.HeaderTimeout, time.Until(deadline).String())
		}
		var elsewhere bool
		if elsewhere, last = s.post(ctx, w, p, head, body, wait); !elsewhere {
			return last
		}
	}
	return last
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

func (s sender) header(req *http.Request, id string) http.Header {
	head := http.Header{}
	contentType := req.Header.Get("Content-Type")
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	head.Set("Content-Type", contentType)
	head.Set(workers.HeaderID, id)
	if v := req.Header.Get("Traceparent"); v != "" && len(v) <= 128 {
		head.Set("Traceparent", v)
	}
	// Only nodes, which forward messages, may set the earlier attempts and the dead letter.
	if fromNode(req) {
		for _, name := range []string{workers.HeaderAttempt, workers.HeaderDeadLetter} {
			if v := req.Header.Get(name); v != "" && len(v) <= 8<<10 {
				head.Set(name, v)
			}
		}
	}
	return head
}

// wake requests a pod for a worker that has none, and waits for it.
func (s sender) wake(ctx context.Context) ([]*corev1.Pod, error) {
	r, namespace, name := s.on.Target()
	none := failed(workers.NoReceiver, http.StatusServiceUnavailable,
		"no ready pod of "+r.Singular+" "+strconv.Quote(name)+" takes messages")
	if s.worker == "" {
		return nil, none
	}
	worker, ok := s.on.Read(workerKind, namespace, s.worker).(*workers.Worker)
	if !ok || worker.Spec.Scale == nil && worker.Spec.Replicas != nil && *worker.Spec.Replicas == 0 ||
		worker.Spec.StartSeconds == nil {
		return nil, none
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*worker.Spec.StartSeconds)*time.Second)
	defer cancel()
	if worker.Spec.Scale != nil && needsWake(worker) {
		err := s.on.Change(ctx, workerKind, namespace, s.worker, func(o client.Object) (client.Object, error) {
			if now, ok := o.(*workers.Worker); ok && needsWake(now) { // otherwise nothing is written
				at := metav1.NowMicro()
				now.Status.WakeTime = &at
			}
			return o, nil
		})
		if err != nil {
			return nil, err
		}
	}
	var pods []*corev1.Pod
	if err := s.on.Await(ctx, podKind, namespace, func() bool { pods = s.starting(); return len(pods) > 0 }); err != nil {
		return nil, failed(workers.NoReceiver, http.StatusServiceUnavailable,
			"no pod of worker "+strconv.Quote(s.worker)+" was ready within "+strconv.Itoa(int(*worker.Spec.StartSeconds))+" s")
	}
	return pods, nil
}

// needsWake reports whether a message must wake the worker: at most once in half of its idle time.
func needsWake(w *workers.Worker) bool {
	at := w.Status.WakeTime
	return w.Spec.Scale != nil &&
		(at == nil || time.Since(at.Time) > time.Duration(w.Spec.Scale.IdleSeconds)*time.Second/2)
}

// toNode posts to a path on a pod's node. elsewhere is true if nothing was sent, so another pod may be tried.
func (s sender) toNode(ctx context.Context, p *corev1.Pod, path string, head http.Header,
	body []byte) (res *http.Response, elsewhere bool, err error) {
	var transport http.RoundTripper
	location, connected := &url.URL{}, false
	if local := s.localNode(p.Spec.NodeName); local != nil {
		transport, connected = local, true
	} else {
		if location, transport, err = s.on.Node(ctx, p.Spec.NodeName); err != nil {
			return nil, true, failed(workers.NoReceiver, http.StatusServiceUnavailable,
				"the node of pod "+p.Name+" cannot be reached: "+err.Error())
		}
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { connected = true },
		})
	}
	u := &url.URL{
		Scheme: location.Scheme,
		Host:   location.Host,
		Path:   "/" + path + "/" + p.Namespace + "/" + p.Name + "/" + string(p.UID),
	}
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	out.Header = head.Clone()
	res, err = transport.RoundTrip(out) //nolint:bodyclose // the caller does
	switch {
	case err == nil:
		return res, false, nil
	case !connected:
		return nil, true, failed(workers.NoReceiver, http.StatusServiceUnavailable,
			"the node of pod "+p.Name+" cannot be reached: "+err.Error())
	case ctx.Err() != nil:
		return nil, false, failed(workers.HandlerTimeout, http.StatusGatewayTimeout,
			"there was no answer from pod "+p.Name+" in time")
	}
	return nil, false, failed(workers.ReceiverLost, http.StatusBadGateway,
		"the node of pod "+p.Name+" was lost while it had the message, which may have been handled: "+err.Error())
}

// post sends the message to a pod's node. elsewhere is true if it may be sent to another pod.
func (s sender) post(ctx context.Context, w http.ResponseWriter, p *corev1.Pod, head http.Header, body []byte,
	wait bool) (elsewhere bool, err error) {
	if !wait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, acceptTime)
		defer cancel()
		head.Del(workers.HeaderReceipt) // the receipt of the previous pod
		if r := s.receipt(p, head.Get("Content-Type"), body); r != "" {
			head.Set(workers.HeaderReceipt, r)
		}
	}
	res, elsewhere, err := s.toNode(ctx, p, "messages", head, body)
	if err != nil {
		return elsewhere, err
	}
	defer res.Body.Close()
	if f := workers.Failure(res.Header.Get(workers.HeaderFailure)); f != "" || res.StatusCode >= 300 {
		text, _ := bounded.All(res.Body, 8<<10)
		if f == "" {
			return false, apierrors.NewGenericServerResponse(res.StatusCode, "create", corev1.Resource("pods/message"), p.Name,
				string(text), 0, true)
		}
		untouched := res.Header.Get(workers.HeaderUntouched) == "true"
		e := failed(f, res.StatusCode, "pod "+p.Name+": "+string(text))
		if kind := res.Header.Get(workers.HeaderErrorType); kind != "" {
			w.Header().Set(workers.HeaderErrorType, kind)
			e.ErrStatus.Details.Causes[0].Field = kind
		}
		w.Header().Set(workers.HeaderFailure, string(f))
		w.Header().Set(workers.HeaderPod, p.Name)
		return untouched && (f == workers.NoReceiver || f == workers.QueueFull), e
	}
	h := w.Header()
	h.Set(workers.HeaderPod, p.Name)
	h.Del(workers.HeaderFailure)
	if !wait {
		w.WriteHeader(http.StatusAccepted)
		return false, nil
	}
	reply, err := bounded.All(res.Body, workers.MaxPayload)
	if err != nil {
		return false, failed(workers.ReceiverLost, http.StatusBadGateway,
			"the reply of pod "+p.Name+" broke off: "+err.Error())
	}
	h.Set("X-Content-Type-Options", "nosniff")
	for _, name := range []string{"Content-Type", workers.HeaderAttempt} {
		if v := res.Header.Get(name); v != "" {
			h.Set(name, v)
		}
	}
	if res.Header.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	h.Set("Content-Length", strconv.Itoa(len(reply)))
	w.WriteHeader(http.StatusOK)
	_, _ = io.Copy(w, bytes.NewReader(reply))
	return false, nil
}

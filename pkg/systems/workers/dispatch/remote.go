package dispatch

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/parts"
)

// post delivers a message to a pod on another machine and returns the outcome.
func (d *Dispatcher) post(ctx context.Context, node string, m *workers.Delivery) workers.Outcome {
	unreachable := func(err error) workers.Outcome {
		return workers.Outcome{
			Failure: workers.NoReceiver, Text: "the pod's node cannot be reached: " + err.Error(), Untouched: true,
		}
	}
	base, transport, err := d.c.Connect(ctx, node)
	if err != nil {
		return unreachable(err)
	}
	connected := false
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected = true },
	})
	u := base.JoinPath("messages", m.Namespace, m.Pod, string(m.UID)).String()
	req, err := http.NewRequestWithContext(traced, http.MethodPost, u, bytes.NewReader(m.Payload))
	if err != nil {
		return unreachable(err)
	}
	h := req.Header
	h.Set("Content-Type", m.ContentType)
	h.Set(workers.HeaderID, m.ID)
	h.Set(workers.HeaderAttempt, strconv.Itoa(int(m.Attempt)))
	if m.Trace != "" {
		h.Set("Traceparent", m.Trace)
	}
	if m.DeadLetter != "" {
		h.Set(workers.HeaderDeadLetter, m.DeadLetter)
	}
	if !m.Deadline.IsZero() {
		h.Set(workers.HeaderTimeout, time.Until(m.Deadline).String())
	}
	if m.Begin != nil {
		h.Set(workers.HeaderParts, "true")
	}
	res, err := transport.RoundTrip(req)
	switch {
	case err != nil && !connected:
		return unreachable(err)
	case err != nil:
		return workers.Outcome{
			Failure: workers.ReceiverLost, Text: "the pod's node was lost while it had the message: " + err.Error(),
		}
	}
	defer res.Body.Close()
	if m.Begin != nil && res.Header.Get(workers.HeaderParts) != "" {
		return inParts(m, res)
	}
	body, err := bounded.All(res.Body, workers.MaxPayload)
	if f := workers.Failure(res.Header.Get(workers.HeaderFailure)); f != "" {
		return workers.Outcome{
			Failure: f, Text: bounded.Text(string(body), maxText),
			ErrorType: bounded.Text(res.Header.Get(workers.HeaderErrorType), maxText),
			Untouched: res.Header.Get(workers.HeaderUntouched) == "true",
		}
	}
	if err != nil {
		return workers.Outcome{Failure: workers.ReceiverLost, Text: "the reply broke off: " + err.Error()}
	}
	if res.StatusCode != http.StatusOK {
		return workers.Outcome{
			Failure: workers.ReceiverLost, Text: res.Status + ": " + bounded.Text(string(body), maxText),
			// A former version's agent does not serve this path, and one that starts does not know its pods yet.
			Untouched: res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusServiceUnavailable,
		}
	}
	return workers.Outcome{Payload: body, ContentType: res.Header.Get("Content-Type")}
}

// inParts passes on a reply in parts.
func inParts(m *workers.Delivery, res *http.Response) workers.Outcome {
	to := m.Begin(res.Header.Get("Content-Type"))
	err := parts.Copy(to, bounded.Reader(res.Body, workers.MaxReply), make([]byte, parts.Size))
	if err != nil {
		return workers.Outcome{Failure: workers.ReceiverLost, Text: "the reply broke off: " + err.Error()}
	}
	return workers.Outcome{
		Failure:   workers.Failure(res.Trailer.Get(workers.HeaderFailure)),
		ErrorType: bounded.Text(res.Trailer.Get(workers.HeaderErrorType), maxText),
		Text:      bounded.Text(res.Trailer.Get(workers.HeaderErrorText), maxText),
	}
}

// maxText bounds the text of a failure from a node, in bytes.
const maxText = 4 << 10

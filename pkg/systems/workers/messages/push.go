package messages

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
)

// pusher posts the messages of a pod in mode Push, as CloudEvents 1.0 in HTTP's binary content mode, or batches in the
// batched content mode.
type pusher struct {
	r         *receiver
	transport *http.Transport
	url       string
	more      chan struct{} // signals that tryTake may return a message
}

func newPusher(r *receiver) *pusher {
	address := net.JoinHostPort(r.ip, strconv.Itoa(int(r.queue.config.Port)))
	n := int(r.queue.config.Concurrency)
	return &pusher{
		r: r, url: "http://" + address + r.queue.config.Path, more: make(chan struct{}, 1), transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: n, MaxConnsPerHost: n,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
		},
	}
}

func (p *pusher) wake() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// run pushes messages until the pod is removed, each in its own goroutine.
func (p *pusher) run() {
	defer p.transport.CloseIdleConnections()
	for {
		select {
		case <-p.r.ctx.Done():
			return
		case <-p.more:
		}
		for {
			e := p.r.queue.tryTake()
			if e == nil {
				break
			}
			p.r.m.background(func() { p.push(e) })
		}
	}
}

// push posts a message and reads the reply. It retries while the program refuses the connection.
func (p *pusher) push(e *entry) {
	ctx, cancel := context.WithDeadline(p.r.ctx, p.r.deadline(e))
	defer cancel()
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		o, sent := p.post(ctx, e)
		if sent {
			p.r.queue.resolveEntry(e, o)
			return
		}
		select {
		case <-ctx.Done():
			if p.r.ctx.Err() != nil {
				p.r.queue.giveBack(e)
				return
			}
			o.Failure = workers.HandlerTimeout
			p.r.queue.resolveEntry(e, o)
			return
		case <-time.After(delay): // the program does not listen yet
		}
	}
}

// post posts a message once. sent is false only if the program cannot have received it.
func (p *pusher) post(ctx context.Context, e *entry) (o Outcome, sent bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(e.payload.data))
	if err != nil {
		return Outcome{Failure: workers.HandlerFailed, Text: err.Error()}, true
	}
	// The transport sends a POST again only if nothing of it was written (net/http, Transport).
	if p.r.queue.config.Batch == nil {
		p.describe(req.Header, e)
	}
	req.Header.Set("Content-Type", e.ContentType)
	res, err := p.transport.RoundTrip(req) // no redirects: a pod must not point the agent anywhere
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return Outcome{
				Text: "the program does not accept connections on port " + strconv.Itoa(int(p.r.queue.config.Port)),
			}, false
		}
		f := workers.ReceiverLost
		if ctx.Err() != nil && p.r.ctx.Err() == nil {
			f = workers.HandlerTimeout
		}
		return Outcome{Failure: f, Text: "the program did not answer: " + err.Error()}, true
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		text, _ := bounded.All(io.LimitReader(res.Body, maxErrorText), maxErrorText)
		return Outcome{
			Failure:   workers.HandlerFailed,
			ErrorType: "HTTP" + strconv.Itoa(res.StatusCode),
			Text:      clip(res.Status+": "+string(text), maxErrorText),
		}, true
	}
	contentType := clip(res.Header.Get("Content-Type"), 256)
	if res.ContentLength < 0 {
		o := p.r.inParts(e, res.Body, contentType)
		return trailed(o, res.Trailer), true
	}
	body, err := p.r.bytes.read(res.Body, res.ContentLength)
	if err != nil {
		return unread(err), true
	}
	return Outcome{body: body, ContentType: contentType}, true
}

// describe sets the attributes of a message's CloudEvent.
func (p *pusher) describe(head http.Header, e *entry) {
	head.Set("Ce-Specversion", "1.0")
	head.Set("Ce-Id", e.ID)
	head.Set("Ce-Type", event.Type)
	head.Set("Ce-Source", event.Source(p.r.pod.Namespace, p.r.name()))
	head.Set("Ce-Attempt", strconv.Itoa(int(e.Attempt)))
	if e.Trace != "" {
		head.Set(workers.HeaderEventTrace, e.Trace)
		head.Set(headerTrace, e.Trace)
	}
	if e.DeadLetter != "" {
		head.Set("Ce-Deadletter", e.DeadLetter)
	}
}

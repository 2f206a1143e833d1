package messages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// elsewhere sends a message to the service of its worker, or of the dead-letter worker if dead, the reason, is set. It
// retries until a node accepts the message or the message expires. An AtMostOnce message is not sent again once a node
// may have accepted it.
func (m *Manager) elsewhere(p *corev1.Pod, c workers.Queue, e *entry, dead string) {
	service := c.Worker
	if dead != "" {
		service = c.DeadLetter
	}
	if service == "" || m.c.API == nil {
		m.drop(p, e, workers.ReceiverLost, "the pod terminated, and belongs to no worker")
		return
	}
	if dead == "" && c.Promise == workers.AtMostOnce && e.Attempts > 0 {
		m.drop(p, e, workers.ReceiverLost, "the pod terminated while its program had the message")
		return
	}
	for delay := firstDelay; ; delay = min(2*delay, longestDelay) {
		again, perhaps, err := m.sendTo(p.Namespace, service, e, dead)
		if err == nil {
			if e.seq != 0 {
				m.log.done(e.seq)
			}
			e.payload.release()
			if dead != "" {
				m.mu.Lock()
				m.ended.deadLettered++
				m.mu.Unlock()
				m.c.Event(p, corev1.EventTypeWarning, "MessageDeadLettered",
					fmt.Sprintf("A message was sent to worker %s after %d attempts: %s", service, e.Attempts, dead))
			}
			return
		}
		if perhaps && c.Promise == workers.AtMostOnce {
			m.drop(p, e, workers.ReceiverLost, fmt.Sprintf("it is unknown whether worker %s has accepted the message: %v",
				service, err))
			return
		}
		if !again || time.Now().Add(delay).After(e.expires) {
			m.drop(p, e, workers.ReceiverLost, fmt.Sprintf("worker %s did not accept the message: %v", service, err))
			return
		}
		select {
		case <-m.ctx.Done():
			return // AtLeastOnce messages are in the log
		case <-time.After(delay):
		}
	}
}

// sendTo sends a message to a service once. On an error, again reports whether a later attempt may succeed, and perhaps
// whether a node may have accepted the message.
func (m *Manager) sendTo(namespace, service string, e *entry, dead string) (again, perhaps bool, err error) {
	select {
	case m.sends <- struct{}{}:
		defer func() { <-m.sends }()
	case <-m.ctx.Done():
		return true, false, m.ctx.Err()
	}
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/services/" + url.PathEscape(service) + "/message"
	req, err := http.NewRequestWithContext(m.ctx, http.MethodPost, path, bytes.NewReader(e.payload.data))
	if err != nil {
		return false, false, err
	}
	req.Header.Set("Content-Type", e.ContentType)
	req.Header.Set(workers.HeaderID, e.ID)
	if e.Receipt != "" {
		req.Header.Set(workers.HeaderReceipt, e.Receipt)
	}
	if dead != "" {
		req.Header.Set(workers.HeaderDeadLetter, dead)
	} else {
		req.Header.Set(workers.HeaderAttempt, strconv.Itoa(int(e.Attempts)))
		if e.DeadLetter != "" {
			req.Header.Set(workers.HeaderDeadLetter, e.DeadLetter)
		}
	}
	if e.Trace != "" {
		req.Header.Set(headerTrace, e.Trace)
	}
	res, err := m.c.API.Do(req, "")
	if err != nil {
		var dial *net.OpError
		return true, !errors.As(err, &dial) || dial.Op != "dial", err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusAccepted {
		return false, false, nil
	}
	text, _ := bounded.All(res.Body, 4<<10)
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
	gone := res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusBadRequest ||
		res.StatusCode == http.StatusRequestEntityTooLarge
	// On a 4xx or 503 no node has accepted the message. Other failures leave that unknown.
	refused := res.StatusCode >= 400 && res.StatusCode < 500 || res.StatusCode == http.StatusServiceUnavailable
	return !gone, !refused, fmt.Errorf("%s: %s", res.Status, text)
}

// headerTrace is passed on unchanged (W3C Trace Context).
const headerTrace = "Traceparent"

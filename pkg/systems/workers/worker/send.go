package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// SendError is the error of a message that was not accepted, or got no reply.
type SendError struct {
	// Code is the HTTP status code: 404 if the target does not exist, 403 if the service account may not send to it,
	// 429 for a full queue, 500 if the handler failed, 502 for a lost receiver, 503 if there is no receiver, 504 for a
	// timeout.
	Code int
	// Reason is a word such as NoReceiver.
	Reason, Message string
}

func (e *SendError) Error() string { return fmt.Sprintf("%s (%d): %s", e.Reason, e.Code, e.Message) }

// Send sends a message without waiting for a reply. The target is pod/NAME or service/NAME in the pod's namespace, or
// NAMESPACE/service/NAME. After a nil error the message is in the receiver's queue.
func Send(ctx context.Context, target string, payload []byte) error {
	_, err := post(ctx, target, payload, false)
	return err
}

// Call sends a message and returns the reply. It waits until the context's deadline, or at most one minute without one.
func Call(ctx context.Context, target string, payload []byte) ([]byte, error) {
	return post(ctx, target, payload, true)
}

// traceKey is the key of a handler's context for the trace of its message.
type traceKey struct{}

var sending = sync.OnceValue(func() *http.Client { return newClient(16) })

func post(ctx context.Context, target string, payload []byte, wait bool) ([]byte, error) {
	api := os.Getenv("CORACLE_MESSAGES_API")
	if api == "" {
		return nil, errors.New("CORACLE_MESSAGES_API is not set: this program does not run in the pods of a Worker")
	}
	path, err := path(target)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+api+"/v1/"+path+"/message",
		bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if trace, _ := ctx.Value(traceKey{}).(string); trace != "" {
		req.Header.Set("Traceparent", trace)
	}
	if wait {
		req.Header.Set("Coracle-Wait", "true")
		if at, ok := ctx.Deadline(); ok {
			req.Header.Set("Coracle-Timeout", min(max(time.Until(at), time.Millisecond), time.Hour).String())
		}
	}
	res, err := sending().Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, MaxPayload+1))
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		return nil, sendError(res.StatusCode, body)
	}
	return body, nil
}

func path(target string) (string, error) {
	parts := strings.Split(target, "/")
	namespace := ""
	if len(parts) == 3 {
		namespace, parts = "namespaces/"+url.PathEscape(parts[0])+"/", parts[1:]
	}
	if len(parts) == 2 && parts[1] != "" {
		switch parts[0] {
		case "pod", "pods":
			return namespace + "pods/" + url.PathEscape(parts[1]), nil
		case "service", "services", "svc", "worker":
			return namespace + "services/" + url.PathEscape(parts[1]), nil
		}
	}
	return "", fmt.Errorf("target %q is not pod/NAME or service/NAME", target)
}

// sendError converts a response to an error: a Kubernetes Status, or an error of the agent.
func sendError(code int, body []byte) error {
	var s struct{ Reason, Message, ErrorType, ErrorMessage string }
	_ = json.Unmarshal(body, &s)
	e := &SendError{Code: code, Reason: s.Reason + s.ErrorType, Message: s.Message + s.ErrorMessage}
	if e.Reason == "" {
		e.Reason = http.StatusText(code)
	}
	return e
}

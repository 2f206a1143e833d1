package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

// Refuse returns an error for Handle that becomes an answer with this status, at least 400, and message.
func Refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// errHandled means that the answer has begun and cannot be completed, so its connection must be closed.
var errHandled = http.ErrAbortHandler

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errHandled) {
		panic(errHandled)
	}
	status, message := statusOf(err)
	if status == http.StatusInternalServerError {
		s.log.Error("could not serve request", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	fail(w, status, message)
}

// statusOf returns the status and message of an error. It keeps the API server's status, except that client errors,
// including failed validation, are 400 as in Podling.
func statusOf(err error) (int, string) {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused.status, refused.message
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return http.StatusServiceUnavailable, "the request did not complete in time"
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return http.StatusInternalServerError, err.Error()
	}
	message := status.Status().Message
	switch code := int(status.Status().Code); {
	case status.Status().Reason == metav1.StatusReasonInvalid:
		return http.StatusBadRequest, message
	case code == http.StatusGatewayTimeout:
		return http.StatusServiceUnavailable, message
	case code >= 400 && code < 600:
		return code, message
	}
	return http.StatusInternalServerError, message
}

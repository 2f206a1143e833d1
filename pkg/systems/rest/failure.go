package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refusal is an answer with a status of 400 or more.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

// Refuse returns the error of a Handle that answers with a status of 400 or more and a message.
func Refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// errHandled means that the answer was begun, and its connection must be closed because it cannot be completed.
var errHandled = http.ErrAbortHandler

// refuse answers with an error.
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

// statusOf returns the status and message of an error: the API server's, in Podling's form: errors of the client are
// 400, including failed validation.
func statusOf(err error) (int, string) {
	var refused *refusal
	if errors.As(err, &refused) {
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

package apiserver

import (
	"context"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// allotted returns the timeout of a request that is not long-running: ?timeout=, at most Config.RequestTimeout. As
// upstream, zero and negative durations mean the maximum. The error is a Status 400.
func (s *Server) allotted(req *http.Request) (time.Duration, error) {
	most := s.cfg.RequestTimeout
	if q := req.URL.RawQuery; q == "" || !strings.Contains(q, "timeout") && !strings.Contains(q, "%") {
		return most, nil
	}
	value := req.URL.Query().Get("timeout")
	if value == "" {
		return most, nil
	}
	asked, err := time.ParseDuration(value)
	if err != nil {
		return 0, apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
	}
	if asked > 0 && asked < most {
		return asked, nil
	}
	return most, nil
}

// errTimedOut is upstream's response to a request that exceeded its timeout.
func errTimedOut() error {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// longRunningContext reports whether ctx belongs to a watch or stream, to which the request timeout does not apply.
func (s *Server) longRunningContext(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && s.longRunning(info)
}

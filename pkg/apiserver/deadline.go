package apiserver

import (
	"context"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// allotted is how long a request that is not long-running may take: what ?timeout= says, within Config.RequestTimeout. Zero and
// negative durations ask for the bound, as upstream. The error is a Status 400.
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

// errTimedOut is upstream's answer to a request whose time was up.
func errTimedOut() error {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// longRunningContext reports whether a request's context is that of a watch or a stream, whose deadline is not the request's.
func longRunningContext(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && longRunning(info)
}

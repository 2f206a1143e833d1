package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// failures logs 5xx responses, at most mostFailures per failuresEvery, and then the number of suppressed ones.
type failures struct {
	log  *slog.Logger
	rate bounded.Rate
}

const (
	mostFailures  = 20
	failuresEvery = 10 * time.Second
	// longestPath and longestError are the maximum logged bytes of a path and an error.
	longestPath  = 512
	longestError = 2048
)

func newFailures(log *slog.Logger) *failures {
	return &failures{log, bounded.Rate{Most: mostFailures, Every: failuresEvery}}
}

func (f *failures) report(req *http.Request, code int, err error) {
	level := slog.LevelWarn
	if code == http.StatusInternalServerError {
		level = slog.LevelError
	}
	if !f.log.Enabled(req.Context(), level) {
		return
	}
	skipped, ok := f.rate.Allow()
	if !ok {
		return
	}
	name := ""
	if u, ok := request.UserFrom(req.Context()); ok {
		name = u.GetName()
	}
	if skipped > 0 {
		f.log.Log(context.Background(), level, "failed requests not logged", "count", skipped)
	}
	f.log.Log(context.Background(), level, "request failed", "method", req.Method, "path",
		bounded.Text(req.URL.Path, longestPath), "user", name, "code", code,
		"error", bounded.Text(err.Error(), longestError))
}

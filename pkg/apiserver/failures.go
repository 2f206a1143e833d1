package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// failures logs 5xx responses, at most mostFailures in each failuresEvery, and the number of those not logged.
type failures struct {
	log *slog.Logger

	mu      sync.Mutex
	since   time.Time
	logged  int
	skipped int
}

const (
	mostFailures  = 20
	failuresEvery = 10 * time.Second
	// longestPath is the number of bytes of a path that are logged.
	longestPath = 512
)

func (f *failures) report(req *http.Request, code int, err error) {
	level := slog.LevelWarn
	if code == http.StatusInternalServerError {
		level = slog.LevelError
	}
	if !f.log.Enabled(req.Context(), level) {
		return
	}
	f.mu.Lock()
	now, skipped := time.Now(), 0
	if now.Sub(f.since) >= failuresEvery {
		skipped, f.skipped = f.skipped, 0
		f.since, f.logged = now, 0
	}
	f.logged++
	drop := f.logged > mostFailures
	if drop {
		f.skipped++
	}
	f.mu.Unlock()
	if drop {
		return
	}
	path, name := req.URL.Path, ""
	if len(path) > longestPath {
		path = path[:longestPath] + "..."
	}
	if u, ok := request.UserFrom(req.Context()); ok {
		name = u.GetName()
	}
	if skipped > 0 {
		f.log.Log(context.Background(), level, "failed requests not logged", "count", skipped)
	}
	f.log.Log(context.Background(), level, "request failed", "method", req.Method, "path", path, "user", name, "code", code, "error", err)
}

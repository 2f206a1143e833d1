package api

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/logs"
)

// ServeLog serves a container's log, also after its pod is gone. The query has PodLogOptions.
func (s *Server) ServeLog(w http.ResponseWriter, r *http.Request, log part.Log) {
	o, _, err := logOptions(r, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	path, why := "", "the log is no longer on this node: it was removed with its owner, or to free disk space"
	if p, ok := s.c.Pods.Find(log.Namespace, log.Pod, log.UID); ok {
		run, err := pick(p, log.Container, s.c.Pods.Instances(p.UID, log.Container), false)
		if err != nil {
			why = err.Error()
		} else {
			if path = run.LogPath; path == "" {
				path = pod.LogPath(s.c.LogDir, p, log.Container, run.Attempt)
			}
			if o.Follow {
				ended := make(chan struct{})
				o.Ended = ended
				go func() {
					defer close(ended)
					s.c.Pods.WaitExit(ctx, p.UID, run.ID)
				}()
			}
		}
	}
	f, _ := w.(http.Flusher)
	out := flusher{w, f}
	w.Header().Set("Content-Type", "text/plain")
	if path != "" {
		if o.Follow {
			w.WriteHeader(http.StatusOK)
			out.Flush()
		}
		if err = logs.Read(ctx, path, o, out); !errors.Is(err, fs.ErrNotExist) {
			s.logReadError(ctx, path, err)
			return
		}
	}
	// The pod is gone, maybe since the check above.
	if path, err = log.Kept(); err != nil {
		http.Error(w, why, http.StatusNotFound)
		return
	}
	o.Follow, o.Ended = false, nil
	s.logReadError(ctx, path, logs.Read(ctx, path, o, out))
}

func (s *Server) logReadError(ctx context.Context, path string, err error) {
	if err != nil && ctx.Err() == nil {
		s.c.Logger.Debug("could not read container log", "log", path, "error", err)
	}
}

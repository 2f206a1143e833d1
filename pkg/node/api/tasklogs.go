package api

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/logs"
)

// readTaskLogs serves the log of an attempt of a task, whether its pod is still there or not.
func (s *Server) readTaskLogs(w http.ResponseWriter, r *http.Request) {
	o, _, err := logOptions(r, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	path, why := "", "its log is not on this node any more: it was removed with the task, or to make room for others"
	if p, ok := s.c.Pods.Find(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid"))); ok {
		run, err := pick(p, tasks.ContainerName, s.c.Pods.Instances(p.UID, tasks.ContainerName), false)
		if err != nil {
			why = err.Error()
		} else {
			if path = run.LogPath; path == "" {
				path = pod.LogPath(s.c.LogDir, p, tasks.ContainerName, run.Attempt)
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
	// The pod is gone, or went in between.
	if path, err = s.keptTaskLog(r); err != nil {
		http.Error(w, why, http.StatusNotFound)
		return
	}
	o.Follow, o.Ended = false, nil
	s.logReadError(ctx, path, logs.Read(ctx, path, o, out))
}

// keptTaskLog returns the path of the log of an attempt whose pod is gone.
func (s *Server) keptTaskLog(r *http.Request) (string, error) {
	kept, task, name, uid := s.c.Pods.TaskLogs(), r.PathValue("task"), r.PathValue("pod"), r.PathValue("uid")
	if uid == tasks.AnyPod {
		return kept.FindNamed(task, name, tasks.ContainerName)
	}
	return kept.Find(task, uid, name, tasks.ContainerName)
}

func (s *Server) logReadError(ctx context.Context, path string, err error) {
	if err != nil && ctx.Err() == nil {
		s.c.Logger.Debug("could not read container log", "log", path, "error", err)
	}
}

// forgetTaskLogs removes the logs of a task.
func (s *Server) forgetTaskLogs(w http.ResponseWriter, r *http.Request) {
	if err := s.c.Pods.TaskLogs().Forget(r.PathValue("task")); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

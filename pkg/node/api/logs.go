package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/logs"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// logOptions parses the query, into which the API server has encoded PodLogOptions.
func logOptions(r *http.Request, now time.Time) (o logs.Options, previous bool, err error) {
	q := r.URL.Query()
	o.Tail = -1
	flag := func(name string) bool {
		b, bad := strconv.ParseBool(q.Get(name))
		if q.Get(name) != "" && bad != nil {
			err = fmt.Errorf("%s=%q is neither true nor false", name, q.Get(name))
		}
		return b
	}
	number := func(name string) (int64, bool) {
		text := q.Get(name)
		if text == "" {
			return 0, false
		}
		n, bad := strconv.ParseInt(text, 10, 64)
		if bad != nil || n < 0 {
			err = fmt.Errorf("%s=%q is not a non-negative integer", name, text)
		}
		return n, true
	}
	o.Follow, o.Timestamps, previous = flag("follow"), flag("timestamps"), flag("previous")
	if n, ok := number("tailLines"); ok {
		o.Tail = n
	}
	if n, ok := number("limitBytes"); ok {
		o.Limit = n
	}
	if n, ok := number("sinceSeconds"); ok {
		o.Since = now.Add(-time.Duration(n) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		t, bad := time.Parse(time.RFC3339Nano, text)
		if bad != nil {
			err = fmt.Errorf("sinceTime=%q is not an RFC 3339 time", text)
		}
		o.Since = t
	}
	switch q.Get("stream") {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		o.Stream = "stdout"
	case corev1.LogStreamStderr:
		o.Stream = "stderr"
	default:
		err = fmt.Errorf("stream=%q is not All, Stdout or Stderr", q.Get("stream"))
	}
	return o, previous, err
}

type flusher struct {
	w http.ResponseWriter
	f http.Flusher
}

func (f flusher) Write(b []byte) (int, error) { return f.w.Write(b) }
func (f flusher) Flush() {
	if f.f != nil {
		f.f.Flush()
	}
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	o, previous, err := logOptions(r, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p, _, err := s.find(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	name := r.PathValue("container")
	run, err := pick(p, name, s.c.Pods.Instances(p.UID, name), previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if o.Follow {
		ended := make(chan struct{})
		o.Ended = ended
		go func() {
			defer close(ended)
			s.c.Pods.WaitExit(ctx, p.UID, run.ID)
		}()
	}
	w.Header().Set("Content-Type", "text/plain")
	f, _ := w.(http.Flusher)
	out := flusher{w, f}
	if o.Follow {
		w.WriteHeader(http.StatusOK)
		out.Flush()
	}
	path := run.LogPath
	if path == "" {
		path = pod.LogPath(s.c.LogDir, p, name, run.Attempt)
	}
	if err := logs.Read(ctx, path, o, out); err != nil && !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
		s.c.Logger.Debug("could not read container log", "log", path, "error", err)
	}
}

// pick returns the instance whose log is requested.
func pick(p *corev1.Pod, name string, runs []pod.Instance, previous bool) (*pod.Instance, error) {
	known := false
	var status *corev1.ContainerStatus
	for _, list := range [][]corev1.ContainerStatus{
		p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				status = &list[i]
			}
		}
	}
	for _, n := range names(p) {
		known = known || n == name
	}
	if !known {
		return nil, fmt.Errorf("container %q not found in pod %q", name, p.Name)
	}
	if previous {
		for i, run := range runs {
			if run.State == runtime.Exited && (i > 0 || status != nil && status.State.Waiting != nil) {
				return &runs[i], nil
			}
		}
		return nil, fmt.Errorf("previous terminated container %q in pod %q not found", name, p.Name)
	}
	for i, run := range runs {
		if run.State != runtime.Created {
			return &runs[i], nil
		}
	}
	if status != nil && status.State.Terminated != nil { // the pod was evicted, and the container removed
		return nil, fmt.Errorf("unable to retrieve container logs for %s: the container and its log were removed",
			status.State.Terminated.ContainerID)
	}
	reason := "ContainerCreating"
	if status != nil && status.State.Waiting != nil {
		if reason = status.State.Waiting.Reason; strings.Contains(reason, "Image") {
			return nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, p.Name,
				"trying and failing to pull image")
		}
	}
	return nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, p.Name, reason)
}

func names(p *corev1.Pod) []string {
	var out []string
	for _, c := range p.Spec.InitContainers {
		out = append(out, c.Name)
	}
	for _, c := range p.Spec.Containers {
		out = append(out, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		out = append(out, c.Name)
	}
	return out
}

package tasks

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// taskLog reads the log of a task's attempt from its node's agent, which keeps the log until the task is deleted. The
// query has the parameters of a pod's log, and attempt and index. The default is the last attempt that started.
func taskLog(req *http.Request, on kind.Connection) (http.Handler, error) {
	_, _, name := on.Target()
	follow, err := builtin.ValidateLogOptions(req, name)
	if err != nil {
		return nil, err
	}
	in, err := kept(req, on, "taskLogs", follow)
	if err != nil {
		return nil, err
	}
	return builtin.LogHandler(on, in, follow), nil
}

// taskOutput reads the files of a task's attempt as a tar archive. The query has attempt and index.
func taskOutput(req *http.Request, on kind.Connection) (http.Handler, error) {
	in, err := kept(req, on, "taskOutput", false)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer in.Close()
		w.Header().Set("Content-Type", "application/x-tar")
		if _, err := io.Copy(w, in); err != nil {
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		}
	}), nil
}

// kept opens what a node has kept of an attempt.
func kept(req *http.Request, on kind.Connection, what string, follow bool) (io.ReadCloser, error) {
	r, namespace, name := on.Target()
	t, ok := on.Read(r.GroupVersionKind, namespace, name).(*tasks.Task)
	if !ok {
		return nil, apierrors.NewNotFound(r.GR(), name)
	}
	q := req.URL.Query()
	from, err := loggedAttempt(t, q)
	if err != nil {
		return nil, err
	}
	params := url.Values{}
	for _, p := range []string{
		"follow", "timestamps", "tailLines", "limitBytes", "sinceSeconds", "sinceTime", "stream", "container",
	} {
		if v := q.Get(p); v != "" {
			params.Set(p, v)
		}
	}
	if from.ended {
		params.Del("follow")
	}
	var failed error // the first error other than a node without this log
	for _, node := range from.nodes {
		base, transport, err := on.Node(req.Context(), node)
		if err != nil {
			failed = cmp.Or(failed,
				error(apierrors.NewServiceUnavailable(
					fmt.Sprintf("the log is on node %s, which cannot be reached: %v", node, err))))
			continue
		}
		location := base.JoinPath(what, string(t.UID), namespace, from.pod, from.uid)
		location.RawQuery = params.Encode()
		streamer := &genericrest.LocationStreamer{
			Location: location, Transport: transport, ContentType: "text/plain", Flush: follow,
			ResponseChecker: genericrest.NewGenericHttpResponseChecker(schema.GroupResource{
				Group: r.Group, Resource: "tasks",
			}, name),
			RedirectChecker: genericrest.PreventRedirects,
		}
		in, _, _, err := streamer.InputStream(req.Context(), "", "")
		if err == nil {
			return in, nil
		}
		if !apierrors.IsNotFound(err) {
			failed = cmp.Or(failed, err)
		}
	}
	return nil, cmp.Or(failed, from.notStarted,
		error(apierrors.NewBadRequest(fmt.Sprintf("no such attempt or container of task %s has begun, or its output is not "+
			"kept any more: `coracle ps --task %[1]s` shows its attempts", t.Name))))
}

type loggedFrom struct {
	nodes    []string // the candidates
	pod, uid string
	ended    bool
	// notStarted is the error for an attempt that failed without output because its container did not start, or nil.
	notStarted error
}

func loggedAttempt(t *tasks.Task, q url.Values) (*loggedFrom, error) {
	number := func(name string, low int64) (int64, error) {
		text := q.Get(name)
		if text == "" {
			return -1, nil
		}
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < low {
			return 0, apierrors.NewBadRequest(fmt.Sprintf("%s=%q is not a number of %d or more", name, text, low))
		}
		return n, nil
	}
	attempt, err := number("attempt", 1)
	if err != nil {
		return nil, err
	}
	index, err := number("index", 0)
	if err != nil {
		return nil, err
	}
	asked := func(a *tasks.TaskAttempt) bool {
		return (attempt < 0 || attempt == int64(a.Number)) && (index < 0 || a.Index != nil && index == int64(*a.Index))
	}
	var last *tasks.TaskAttempt
	for i := range t.Status.Attempts {
		if a := &t.Status.Attempts[i]; asked(a) && a.Node != "" && a.PodUID != "" {
			last = a
		}
	}
	if last != nil {
		from := &loggedFrom{
			nodes: []string{last.Node},
			pod:   last.Pod,
			uid:   string(last.PodUID),
			ended: last.Phase.Ended(),
		}
		if last.Phase == tasks.TaskFailed && last.StartedAt == nil {
			from.notStarted = apierrors.NewBadRequest(fmt.Sprintf("attempt %d of task %s has no output, because its "+
				"container did not start: %s", last.Number, t.Name, last.Message))
		}
		return from, nil
	}
	if attempt >= 0 || index >= 0 {
		if from := unlisted(t, attempt, index); from != nil {
			return from, nil
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("no such attempt of task %s has begun: `coracle ps --task "+
			"%[1]s` shows its attempts", t.Name))
	}
	why := string(t.Status.Phase)
	if t.Status.Error != "" {
		why += ": " + t.Status.Error
	}
	return nil, apierrors.NewBadRequest(fmt.Sprintf("task %s has no output, because it has not started: it is %s", t.Name,
		why))
}

// unlisted locates the log of an attempt that the status no longer lists, or returns nil if there cannot be one. It is
// on a node where other attempts ran, under a pod name that follows from the attempt.
func unlisted(t *tasks.Task, attempt, index int64) *loggedFrom {
	array := t.Spec.Array
	if t.Status.EndedAttempts <= tasks.MaxAttempts || array == nil && (index >= 0 || attempt < 0) ||
		array != nil && (index < 0 || index >= int64(t.Size())) {
		return nil
	}
	a := tasks.TaskAttempt{Number: int32(max(attempt, 1))}
	from := &loggedFrom{uid: tasks.AnyPod, ended: true}
	if array != nil {
		a.Index = new(int32(index))
		if st := t.Status.Array; st != nil && len(st.Targets) > 0 {
			from.nodes = []string{st.Targets[index]}
		} else if st != nil {
			from.nodes = slices.Clone(st.Nodes)
		}
	}
	for i := range t.Status.Attempts {
		if node := t.Status.Attempts[i].Node; node != "" && !slices.Contains(from.nodes, node) {
			from.nodes = append(from.nodes, node)
		}
	}
	if from.pod = tasks.PodName(t, &a); attempt < 0 {
		from.pod = strings.TrimSuffix(from.pod, "1") + "*"
	}
	return from
}

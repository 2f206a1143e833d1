package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

const (
	// defaultTail is the number of lines without the parameter tail, maxTail its maximum.
	defaultTail, maxTail = 100, 100_000
	// maxLogs bounds a container's log in an answer other than a stream, in bytes; the end of the log is kept.
	maxLogs = 1 << 20
	// maxLine bounds a line of a stream, in bytes; longer lines are split.
	maxLine = 64 << 10
)

var (
	logQuery    = []Parameter{{"tail", "number of lines from the end, 0 to 100000; 100 if absent", 0}}
	podLogQuery = append(logQuery, Parameter{"container", "a container of the pod; all if absent", ""})
	streamToken = Parameter{"token", "the token, for clients that cannot send headers", ""}
)

// logs serves the log of a task from the node that runs it, which is one of ours or an external worker.
func (t *tasks) logs(c *Call) error {
	tail, err := c.number("tail", defaultTail, 0, maxTail)
	if err != nil {
		return err
	}
	source, err := t.source(c)
	if err != nil {
		return err
	}
	free, err := slot(c, t.reads)
	if err != nil {
		return err
	}
	defer free()
	out := wire.TaskLogs{TaskID: c.Param("id"), Tail: tail}
	if source.worker != "" {
		return t.server().relay(c, source.worker, "/api/v1/tasks/"+url.PathEscape(source.id)+"/logs", tail, &out, &out.Logs)
	}
	if out.Logs, err = t.server().whole(c, source, tail); err != nil {
		return err
	}
	return c.Answer(http.StatusOK, out)
}

func (t *tasks) stream(c *Call) error {
	tail, err := c.number("tail", defaultTail, 0, maxTail)
	if err != nil {
		return err
	}
	source, err := t.source(c)
	if err != nil {
		return err
	}
	return t.server().follow(c, source, "/api/v1/tasks/"+url.PathEscape(source.id)+"/logs/stream", tail)
}

// source locates logs: a container on one of our nodes, or an external worker by its node's name.
type source struct {
	namespace, pod, container, node, worker string
	// id is a worker's ID for the attempt of a task. kept is an agent's path to the attempt's log after its pod is
	// gone.
	id   string
	kept []string
}

func (t *tasks) source(c *Call) (source, error) {
	task, asked, err := t.find(c)
	if err != nil {
		return source{}, err
	}
	a := logged(task, &asked)
	if a == nil {
		return source{}, Refuse(http.StatusBadRequest, "task is not scheduled to any node")
	}
	s := source{
		namespace: task.Namespace, pod: a.Pod, container: taskapi.ContainerName, node: a.Node,
		id:   view.AttemptID(task.Name, a),
		kept: []string{"taskLogs", string(task.UID), task.Namespace, a.Pod, string(a.PodUID)},
	}
	return s, t.server().locate(c, &s)
}

// logged returns the attempt that asked names, or else the last attempt with a node.
func logged(task *taskapi.Task, asked *taskapi.TaskAttempt) *taskapi.TaskAttempt {
	var last *taskapi.TaskAttempt
	for i := range task.Status.Attempts {
		a := &task.Status.Attempts[i]
		named := asked.Number > 1 || asked.Index != nil
		if a.Node != "" && a.PodUID != "" && (!named || view.AttemptID("", a) == view.AttemptID("", asked)) {
			last = a
		}
	}
	return last
}

// locate checks the right to read the logs, and determines whether the node is an external worker.
func (s *Server) locate(ctx context.Context, from *source) error {
	if err := s.cluster.ReadLogs(ctx, from.namespace, from.pod); err != nil {
		return err
	}
	var node corev1.Node
	err := s.cluster.Get(ctx, "", from.node, &node)
	if apierrors.IsNotFound(err) {
		return Refuse(http.StatusNotFound, "worker node not found")
	}
	if err == nil && taskapi.IsExternal(&node) {
		from.worker = node.Name
	}
	return err
}

func (s *Server) open(ctx context.Context, from source, tail int, follow bool) (io.ReadCloser, error) {
	base, transport, err := s.cfg.Nodes.Connect(ctx, from.node)
	if err != nil {
		return nil, Refuse(http.StatusBadGateway, "failed to reach worker: %v", err)
	}
	q := url.Values{"tailLines": {strconv.Itoa(tail)}}
	if follow {
		q.Set("follow", "true")
	}
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	read := func(path ...string) (io.ReadCloser, error) {
		u := base.JoinPath(path...)
		u.RawQuery = q.Encode()
		return s.fetch(ctx, client, u)
	}
	if from.kept != nil {
		// Agents of earlier versions do not keep the logs of tasks whose pods are gone.
		if in, err := read(from.kept...); err == nil || !isNotFound(err) {
			return in, err
		}
	}
	return read("containerLogs", from.namespace, from.pod, from.container)
}

func isNotFound(err error) bool {
	status, _ := statusOf(err)
	return status == http.StatusNotFound
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// fetch returns the body of an answer with status 200. Other answers become an error of bounded length.
func (s *Server) fetch(ctx context.Context, client *http.Client, u *url.URL) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, Refuse(http.StatusBadGateway, "failed to reach worker: %v", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	said := make([]byte, 1024)
	n, _ := io.ReadFull(resp.Body, said)
	said = said[:n]
	if resp.StatusCode == http.StatusNotFound {
		return nil, Refuse(http.StatusNotFound, "no logs: %s", bytes.TrimSpace(said))
	}
	return nil, Refuse(http.StatusBadGateway, "worker returned status %d: %s", resp.StatusCode, bytes.TrimSpace(said))
}

func (s *Server) whole(ctx context.Context, from source, tail int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	in, err := s.open(ctx, from, tail, false)
	if err != nil {
		return "", err
	}
	defer in.Close()
	return lastBytes(in, maxLogs)
}

// lastBytes returns the end of a stream. If it omits something, it begins at the start of a line.
func lastBytes(r io.Reader, most int) (string, error) {
	var kept []byte
	cut := false
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		kept = append(kept, buf[:n]...)
		if len(kept) > 2*most {
			kept, cut = append(kept[:0], kept[len(kept)-most:]...), true
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return "", Refuse(http.StatusBadGateway, "failed to read logs: %v", err)
		}
		if err != nil {
			break
		}
	}
	if len(kept) > most {
		kept, cut = kept[len(kept)-most:], true
	}
	if cut {
		if i := bytes.IndexByte(kept, '\n'); i >= 0 {
			kept = kept[i+1:]
		}
	}
	return string(kept), nil
}

// relay answers with the JSON of an external worker, of limited size and of the expected type. A worker may answer with
// the text of the log instead, unless text is nil.
func (s *Server) relay(c *Call, node, path string, tail int, into any, text *string) error {
	ctx, cancel := context.WithTimeout(c.Context, logTimeout)
	defer cancel()
	inner := *c
	inner.Context = ctx
	in, err := s.askWorker(&inner, node, path, tail)
	if err != nil {
		return err
	}
	defer in.Close()
	data, err := bounded.All(in, 2*maxLogs)
	if err == nil {
		err = json.Unmarshal(data, into)
		if text != nil && (err != nil || !bytes.Contains(data, []byte(`"logs"`))) {
			*text, err = string(data), nil
		}
	}
	if err != nil {
		return Refuse(http.StatusBadGateway, "failed to decode worker response: %v", err)
	}
	return c.Answer(http.StatusOK, into)
}

func (s *Server) askWorker(c *Call, name, path string, tail int) (io.ReadCloser, error) {
	var node corev1.Node
	if err := s.cluster.Get(c, "", name, &node); err != nil {
		return nil, err
	}
	address, err := view.Address(&node)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse("http://" + address.String() + path)
	if err != nil {
		return nil, err
	}
	q := url.Values{"tail": {strconv.Itoa(tail)}}
	if container := c.Request.URL.Query().Get("container"); container != "" {
		q.Set("container", container)
	}
	u.RawQuery = q.Encode()
	return s.fetch(c, s.workers, u)
}

// follow sends a log as server-sent events, one per line, until the log ends or the client disconnects.
func (s *Server) follow(c *Call, from source, path string, tail int) error {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		return Refuse(http.StatusServiceUnavailable, "there are %d log streams already", maxStreams)
	}
	ctx, cancel := context.WithCancel(c)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	inner := *c
	inner.Context = ctx
	var in io.ReadCloser
	var err error
	if from.worker != "" {
		in, err = s.askWorker(&inner, from.worker, path, tail)
	} else {
		in, err = s.open(ctx, from, tail, true)
	}
	if err != nil {
		return err
	}
	defer in.Close()
	rc := http.NewResponseController(c.w)
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("Cache-Control", "no-cache")
	_ = rc.SetWriteDeadline(time.Now().Add(writeStall))
	c.w.WriteHeader(http.StatusOK)
	_ = rc.Flush()
	return copyEvents(c.w, rc, in, from.worker != "")
}

// copyEvents copies lines as events. With events set, the lines are events already, as from an external worker.
func copyEvents(w io.Writer, rc *http.ResponseController, in io.Reader, events bool) error {
	r := bufio.NewReaderSize(in, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(writeStall))
			var failed error
			if events {
				_, failed = w.Write(line)
			} else {
				_, failed = fmt.Fprintf(w, "data: %s\n\n",
					bytes.ReplaceAll(bytes.TrimRight(line, "\r\n"), []byte{'\r'}, []byte("\ndata: ")))
			}
			if failed != nil {
				return errHandled
			}
			if r.Buffered() == 0 {
				_ = rc.Flush()
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			_ = rc.Flush()
			return nil // the log has ended
		}
	}
}

package externalworker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// maxAnswer limits what is read of a worker's answer, in bytes.
const maxAnswer = 64 << 10

// errRefused means that the worker will not accept the pod in a retry either.
var errRefused = errors.New("the worker refused the pod")

type worker struct {
	client *http.Client
	base   string
	own    string // the namespace whose IDs are plain names
}

// target returns the path of a pod at the worker, and the body of the request that sends it.
func (w worker) target(p *corev1.Pod) (path string, body any, err error) {
	if view.AsTask(p, w.own) {
		task, err := view.Assignment(p)
		return "/api/v1/tasks/" + url.PathEscape(task.TaskID), wire.Execute{Task: task}, err
	}
	pod := view.Pod(p, w.own)
	return "/api/v1/pods/" + url.PathEscape(pod.PodID), wire.ExecutePod{Pod: pod}, nil
}

// assign gives a pod to the worker. It asks first whether the worker has it already: an earlier answer may have been
// lost. design reports that the worker has the paths of the design, so that its tasks have to be read from it.
func (w worker) assign(ctx context.Context, p *corev1.Pod) (design bool, err error) {
	path, body, err := w.target(p)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errRefused, err)
	}
	status, _, err := w.send(ctx, http.MethodGet, path+"/status", nil)
	if err != nil || status == http.StatusOK {
		return false, err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	status, said, err := w.send(ctx, http.MethodPost, path+"/execute", data)
	if in, ok := body.(wire.Execute); ok && err == nil && noRoute(status) {
		return true, w.assignByDesign(ctx, path, &in.Task)
	}
	return false, answered(status, said, err)
}

// noRoute reports whether a status says that a worker does not have a path.
func noRoute(status int) bool {
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

func answered(status int, said string, err error) error {
	switch {
	case err != nil:
		return err
	case status >= 200 && status < 300:
		return nil
	case status >= 400 && status < 500:
		return fmt.Errorf("%w: status %d: %s", errRefused, status, clip(said))
	}
	return fmt.Errorf("the worker returned status %d: %s", status, clip(said))
}

// assignByDesign gives a task to a worker that has the paths of Podling's design instead of its code's.
func (w worker) assignByDesign(ctx context.Context, path string, task *wire.Task) error {
	status, _, err := w.send(ctx, http.MethodGet, path, nil)
	if err != nil || status == http.StatusOK {
		return err
	}
	data, err := json.Marshal(wire.Assign{Task: *task, ID: task.TaskID, Node: task.NodeID})
	if err != nil {
		return err
	}
	return answered(w.send(ctx, http.MethodPost, "/api/v1/tasks", data))
}

// read returns the status of a task that a worker of the design has; false if it has no such task.
func (w worker) read(ctx context.Context, p *corev1.Pod) (out wire.TaskStatus, there bool, err error) {
	path, _, err := w.target(p)
	if err != nil {
		return out, false, err
	}
	status, said, err := w.send(ctx, http.MethodGet, path, nil)
	if err != nil || status == http.StatusNotFound {
		return out, false, err
	}
	if err := answered(status, said, nil); err != nil {
		return out, false, err
	}
	if err := json.Unmarshal([]byte(said), &out); err != nil {
		return out, false, fmt.Errorf("%w: its answer is not a task: %w", errRefused, err)
	}
	out.Status, out.ContainerID = strings.ToLower(out.Status), cmp.Or(out.ContainerID, out.Container)
	return out, true, nil
}

// release asks the worker to stop a pod. Tasks cannot be stopped, but their later reports are refused.
func (w worker) release(ctx context.Context, p *corev1.Pod) error {
	if view.AsTask(p, w.own) {
		return nil
	}
	path, _, err := w.target(p)
	if err != nil {
		return err
	}
	status, said, err := w.send(ctx, http.MethodDelete, path, nil)
	if err == nil && status != http.StatusOK && status != http.StatusNotFound {
		err = fmt.Errorf("the worker returned status %d: %s", status, clip(said))
	}
	return err
}

func (w worker) send(ctx context.Context, method, path string, body []byte) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	said := make([]byte, maxAnswer)
	n, err := io.ReadFull(resp.Body, said)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, "", err
	}
	return resp.StatusCode, string(bytes.TrimSpace(said[:n])), nil
}

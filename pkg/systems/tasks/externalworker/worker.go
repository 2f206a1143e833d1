package externalworker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// maxAnswer bounds the part of a worker's answer that is read, in bytes.
const maxAnswer = 4096

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

// assign sends a pod to the worker. It first asks whether the worker has the pod, since an earlier answer may be lost.
func (w worker) assign(ctx context.Context, p *corev1.Pod) error {
	path, body, err := w.target(p)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	status, _, err := w.send(ctx, http.MethodGet, path+"/status", nil)
	if err != nil {
		return err
	}
	if status == http.StatusOK {
		return nil
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	status, said, err := w.send(ctx, http.MethodPost, path+"/execute", data)
	switch {
	case err != nil:
		return err
	case status >= 200 && status < 300:
		return nil
	case status >= 400 && status < 500:
		return fmt.Errorf("%w: status %d: %s", errRefused, status, said)
	}
	return fmt.Errorf("the worker returned status %d: %s", status, said)
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
		err = fmt.Errorf("the worker returned status %d: %s", status, said)
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

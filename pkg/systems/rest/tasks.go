package rest

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// idempotencyHeader holds the key of a create. A second request with the same key is answered with the first one's
// task.
const idempotencyHeader = "Idempotency-Key"

type tasks Server

func (t *tasks) server() *Server { return (*Server)(t) }

func (t *tasks) Routes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Path: "/api/v1/tasks", Summary: "Create a task", Handle: decoded(t.create),
			Headers: []Parameter{{idempotencyHeader, "at most one task has this key; at most 256 bytes", ""}},
			Body:    wire.CreateTask{}, Answer: wire.Task{}, Status: http.StatusCreated, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/tasks", Summary: "List tasks", Handle: t.list, Query: taskPaging,
			Answer: []wire.Task{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/tasks/{id}", Summary: "Get a task", Handle: t.get,
			Answer: wire.Task{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/tasks/{id}/status", Summary: "Get a task, at the path that workers serve",
			Handle: t.get,
			Answer: wire.Task{},
		},
		{
			Method: http.MethodPut, Path: "/api/v1/tasks/{id}/status",
			Summary: "Report the status of a task, as the worker that runs it", Handle: decoded(t.report),
			Body:   wire.TaskStatus{},
			Answer: wire.Task{}, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/tasks/{id}/logs", Summary: "Read the logs of a task", Handle: t.logs,
			Query:  logQuery,
			Answer: wire.TaskLogs{}, Refusals: []int{http.StatusBadGateway},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/tasks/{id}/logs/stream", Summary: "Follow the logs of a task",
			Handle: t.stream, Query: append(logQuery, streamToken), Stream: true,
			Refusals: []int{http.StatusBadGateway},
		},
	}
}

func (t *tasks) create(c *Call, in *wire.CreateTask) error {
	task, err := view.NewTask(in, t.cfg.Namespace, "")
	if err != nil {
		return Refuse(http.StatusBadRequest, "%v", err)
	}
	if task.Spec.IdempotencyKey = c.Request.Header.Get(idempotencyHeader); task.Spec.IdempotencyKey == "" {
		task.Name = newName(in.Name)
	} else {
		task.Name = taskapi.NameForKey(task.Spec.IdempotencyKey)
	}
	asked := task.DeepCopy()
	if err := t.cluster.Create(c, task); apierrors.IsAlreadyExists(err) && asked.Spec.IdempotencyKey != "" {
		if task, err = t.repeated(c, asked); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	why, err := t.server().noNode(c)
	if err != nil {
		return err
	}
	if why == "" {
		if task, err = t.scheduled(c, task); err != nil {
			return err
		}
		why = task.Status.Error
	}
	out := view.Task(task)
	if !task.Status.Phase.Ended() && task.Status.Node == "" {
		out.SchedulingError = why
	}
	return c.Answer(http.StatusCreated, out)
}

// schedulePatience is how long a create waits for the scheduler, so that its answer has the node as in Podling.
const schedulePatience = 300 * time.Millisecond

// scheduled returns the task once it has a node or an explanation, or unchanged after schedulePatience.
func (t *tasks) scheduled(ctx context.Context, task *taskapi.Task) (*taskapi.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, t.schedulePatience)
	defer cancel()
	w, err := t.cluster.WatchTask(ctx, task)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for task.Status.Node == "" && task.Status.Error == "" && !task.Status.Phase.Ended() {
		select {
		case event, ok := <-w.ResultChan():
			now, is := event.Object.(*taskapi.Task)
			if !ok || !is || event.Type == watch.Deleted {
				return task, nil
			}
			task = now
		case <-ctx.Done():
			return task, nil
		}
	}
	return task, nil
}

// repeated returns the task of an earlier request with the same idempotency key. A different request with that key is
// refused.
func (t *tasks) repeated(ctx context.Context, asked *taskapi.Task) (*taskapi.Task, error) {
	var there taskapi.Task
	if err := t.cluster.Get(ctx, asked.Namespace, asked.Name, &there); err != nil {
		return nil, err
	}
	if there.Spec.IdempotencyKey != asked.Spec.IdempotencyKey ||
		there.Annotations[view.NameAnnotation] != asked.Annotations[view.NameAnnotation] ||
		!taskapi.SameRequest(&there, asked) {
		return nil, Refuse(http.StatusConflict, "a different request had this %s: its task is %s", idempotencyHeader,
			there.Name)
	}
	return &there, nil
}

// noNode explains why nothing can be scheduled now, or returns "" if a node may accept the task.
func (s *Server) noNode(ctx context.Context) (string, error) {
	var list corev1.NodeList
	if err := s.cluster.List(ctx, &corev1.Node{}, &list); err != nil {
		return "", err
	}
	for i := range list.Items {
		if n := &list.Items[i]; view.Online(n) && !n.Spec.Unschedulable {
			return "", nil
		}
	}
	return "no available nodes", nil
}

// taskPaging are the parameters of lists of tasks. Pages are ordered by ID, so that a page is made without reading the
// other tasks, of which there may be very many.
var taskPaging = []Parameter{
	{"limit", "maximum number of tasks, 1 to 5000, in the order of their IDs; all, oldest first, if absent", 0}, paging[1],
}

func (t *tasks) list(c *Call) error {
	var list taskapi.TaskList
	limit, err := c.number("limit", 0, 1, maxPage)
	if err != nil {
		return err
	}
	if limit > 0 {
		after := c.Request.URL.Query().Get("continue")
		if len(after) > maxContinue {
			return Refuse(http.StatusBadRequest, "invalid continue parameter")
		}
		err := t.cluster.List(c, &taskapi.Task{}, &list, ctrl.InNamespace(t.cfg.Namespace), ctrl.Limit(limit),
			ctrl.Continue(after))
		if apierrors.IsBadRequest(err) {
			return Refuse(http.StatusBadRequest, "invalid continue parameter")
		}
		if err != nil {
			return err
		}
		if list.Continue != "" {
			c.w.Header().Set(continueHeader, list.Continue)
		}
		return writeList(c, pointers(list.Items), func(task *taskapi.Task) any { return view.Task(task) })
	}
	if err := t.cluster.List(c, &taskapi.Task{}, &list, ctrl.InNamespace(t.cfg.Namespace)); err != nil {
		return err
	}
	return page(c, pointers(list.Items), func(task *taskapi.Task) any { return view.Task(task) })
}

var errNoTask = Refuse(http.StatusNotFound, "task not found")

func (t *tasks) find(c *Call) (*taskapi.Task, taskapi.TaskAttempt, error) {
	name, attempt, ok := view.ParseAttemptID(c.Param("id"))
	if !ok || name == "" {
		return nil, attempt, errNoTask
	}
	var task taskapi.Task
	err := t.cluster.Get(c, t.cfg.Namespace, name, &task)
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
		err = errNoTask
	}
	return &task, attempt, err
}

func (t *tasks) get(c *Call) error {
	task, _, err := t.find(c)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Task(task))
}

// report applies a worker's report to the attempt's pod. The task's status follows from the pod's.
func (t *tasks) report(c *Call, in *wire.TaskStatus) error {
	in.ContainerID = cmp.Or(in.ContainerID, in.Container)
	task, attempt, err := t.find(c)
	if err != nil {
		return err
	}
	var pod *corev1.Pod
	err = again(c, func() (err error) {
		if pod, err = t.owned(c, task, &attempt); err != nil || pod == nil {
			return err
		}
		changed, err := view.ReportTask(pod, in, time.Now())
		if err != nil {
			return stale(err)
		}
		if !changed {
			return nil
		}
		return t.cluster.UpdateStatus(c, pod)
	})
	if err != nil {
		return err
	}
	if pod == nil {
		return t.late(c, task, &attempt, in)
	}
	out := view.Task(task)
	out.Status, out.NodeID, out.ContainerID, out.Error = in.Status, pod.Spec.NodeName, in.ContainerID, in.Error
	if in.HealthStatus != "" {
		out.HealthStatus = in.HealthStatus
	}
	return c.Answer(http.StatusOK, out)
}

// stale returns status 409 for a report that came too late, and 400 for an invalid one.
func stale(err error) error {
	if late, ok := errors.AsType[view.ErrStale](err); ok {
		return Refuse(http.StatusConflict, "%s", string(late))
	}
	return Refuse(http.StatusBadRequest, "%v", err)
}

// owned returns a copy of an attempt's pod, or nil if the pod is gone. The request must come from the external worker
// that runs it.
func (t *tasks) owned(c *Call, task *taskapi.Task, attempt *taskapi.TaskAttempt) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := t.cluster.Get(c, task.Namespace, taskapi.PodName(task, attempt), &pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := t.server().owner(c, pod.Spec.NodeName); err != nil {
		return nil, err
	}
	return pod.DeepCopy(), nil
}

// late answers a report on an attempt whose pod is gone. A repetition of the last applied report succeeds, since its
// first answer may be lost. Other reports are from a worker that was given up, and are refused.
func (t *tasks) late(c *Call, task *taskapi.Task, attempt *taskapi.TaskAttempt, in *wire.TaskStatus) error {
	for i := range task.Status.Attempts {
		a := &task.Status.Attempts[i]
		if view.AttemptID(task.Name, a) != view.AttemptID(task.Name, attempt) {
			continue
		}
		if err := t.server().owner(c, a.Node); err != nil {
			return err
		}
		if a.Phase == taskapi.TaskCompleted && in.Status == wire.TaskCompleted ||
			a.Phase == taskapi.TaskFailed && in.Status == wire.TaskFailed && a.Reason != taskapi.ReasonNodeLost {
			return c.Answer(http.StatusOK, view.Task(task))
		}
	}
	return Refuse(http.StatusConflict, "the attempt has ended already")
}

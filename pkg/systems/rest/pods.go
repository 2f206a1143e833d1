package rest

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// pods serves pods other than the pods of tasks. In namespaces other than the facade's it serves only pods created
// here.
type pods Server

func (p *pods) server() *Server { return (*Server)(p) }

func (p *pods) Routes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Path: "/api/v1/pods", Summary: "Create a pod", Handle: decoded(p.create),
			Body: wire.CreatePod{}, Answer: wire.Pod{}, Status: http.StatusCreated,
		},
		{
			Method: http.MethodGet, Path: "/api/v1/pods", Summary: "List pods", Handle: p.list, Query: paging,
			Answer: []wire.Pod{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/pods/{id}", Summary: "Get a pod", Handle: p.single().get,
			Answer: wire.Pod{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/pods/{id}/status", Summary: "Get a pod, at the path that workers serve",
			Handle: p.single().get,
			Answer: wire.Pod{},
		},
		{
			Method: http.MethodPut, Path: "/api/v1/pods/{id}/status",
			Summary: "Report the status of a pod, as the worker that runs it", Handle: decoded(p.report),
			Body:   wire.PodStatus{},
			Answer: wire.Pod{}, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodPatch, Path: "/api/v1/pods/{id}", Summary: "Bind a pod to a node, as a scheduler does",
			Handle: decoded(p.bind), Body: wire.PatchPod{},
			Answer: wire.Pod{}, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodDelete, Path: "/api/v1/pods/{id}", Summary: "Delete a pod", Handle: p.own().remove,
			Answer: wire.Message{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/pods/{id}/logs", Summary: "Read the logs of a pod", Handle: p.logs,
			Query:  podLogQuery,
			Answer: wire.PodLogs{}, Refusals: []int{http.StatusBadGateway},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/pods/{id}/logs/stream", Summary: "Follow the logs of a container",
			Handle: p.stream, Query: append(podLogQuery, streamToken), Stream: true,
			Refusals: []int{http.StatusBadGateway},
		},
	}
}

func (p *pods) create(c *Call, in *wire.CreatePod) error {
	pod, err := view.NewPod(in, cmp.Or(in.Namespace, p.cfg.Namespace), newName(in.Name))
	if err != nil {
		return Refuse(http.StatusBadRequest, "%v", err)
	}
	if err := p.cluster.CreateIn(c, pod); err != nil {
		return err
	}
	out := view.Pod(pod, p.cfg.Namespace)
	if out.SchedulingError, err = p.server().noNode(c); err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, out)
}

func (p *pods) list(c *Call) error {
	own, err := p.listed(c)
	if err != nil {
		return err
	}
	return page(c, own, func(pod *corev1.Pod) any { return view.Pod(pod, p.cfg.Namespace) })
}

func (p *pods) listed(ctx context.Context) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := p.cluster.List(ctx, &corev1.Pod{}, &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pointers(list.Items), func(pod *corev1.Pod) bool { return !p.shows(pod) }), nil
}

func (p *pods) shows(pod *corev1.Pod) bool {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil && ref.Kind == "Task" {
		return false
	}
	return pod.Namespace == p.cfg.Namespace || pod.Labels[view.Managed] == "true"
}

var errNoPod = Refuse(http.StatusNotFound, "pod not found")

// find returns the pod with an ID. Pods of tasks are included, because a worker may run them.
func (p *pods) find(c *Call) (*corev1.Pod, error) {
	namespace, name := view.ParseID(c.Param("id"), p.cfg.Namespace)
	if namespace == "" || name == "" {
		return nil, errNoPod
	}
	var pod corev1.Pod
	err := p.cluster.Get(c, namespace, name, &pod)
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) ||
		err == nil && namespace != p.cfg.Namespace && pod.Labels[view.Managed] != "true" {
		err = errNoPod
	}
	return &pod, err
}

func (p *pods) answer(c *Call, pod *corev1.Pod) error {
	return c.Answer(http.StatusOK, view.Pod(pod, p.cfg.Namespace))
}

func (p *pods) single() single[*corev1.Pod] {
	return single[*corev1.Pod]{find: p.find, answer: p.answer}
}

// own serves the pods that lists show, without the pods of tasks.
func (p *pods) own() single[*corev1.Pod] {
	find := func(c *Call) (*corev1.Pod, error) {
		pod, err := p.find(c)
		if err == nil && !p.shows(pod) {
			err = errNoPod
		}
		return pod, err
	}
	return single[*corev1.Pod]{find, p.answer, errNoPod, "pod deleted successfully"}
}

func (p *pods) report(c *Call, in *wire.PodStatus) error {
	var pod *corev1.Pod
	err := again(c, func() (err error) {
		if pod, err = p.find(c); err != nil {
			return err
		}
		if err := p.server().owner(c, pod.Spec.NodeName); err != nil {
			return err
		}
		pod = pod.DeepCopy()
		changed, err := view.ReportPod(pod, in, time.Now())
		if err != nil {
			return stale(err)
		}
		if !changed {
			return nil
		}
		return p.cluster.UpdateStatus(c, pod)
	})
	if err != nil {
		return err
	}
	return p.answer(c, pod)
}

func (p *pods) bind(c *Call, in *wire.PatchPod) error {
	pod, err := p.find(c)
	if err != nil {
		return err
	}
	name := cmp.Or(in.NodeName, in.Spec.NodeName)
	if name == "" {
		return Refuse(http.StatusBadRequest, "nodeName is required: nothing else of a pod can be changed")
	}
	if !p.shows(pod) {
		return errNoPod
	}
	var node corev1.Node
	if err := p.cluster.Get(c, "", name, &node); apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
		return errNoNode
	} else if err != nil {
		return err
	}
	if err := p.cluster.Bind(c, pod, name); err != nil {
		return err
	}
	return p.single().get(c)
}

// source returns the location of a pod's logs, and the requested container or all containers.
func (p *pods) source(c *Call) (source, []string, error) {
	pod, err := p.find(c)
	if err != nil {
		return source{}, nil, err
	}
	if pod.Spec.NodeName == "" {
		return source{}, nil, Refuse(http.StatusBadRequest, "pod is not scheduled to any node")
	}
	var all []string
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Name)
	}
	if one := c.Request.URL.Query().Get("container"); one != "" {
		if !slices.Contains(all, one) {
			return source{}, nil, Refuse(http.StatusNotFound, "container %s not found in pod %s", one[:min(len(one), 63)],
				pod.Name)
		}
		all = []string{one}
	}
	s := source{namespace: pod.Namespace, pod: pod.Name, node: pod.Spec.NodeName}
	return s, all, p.server().locate(c, &s)
}

func (p *pods) logs(c *Call) error {
	tail, err := c.number("tail", defaultTail, 0, maxTail)
	if err != nil {
		return err
	}
	from, containers, err := p.source(c)
	if err != nil {
		return err
	}
	free, err := slot(c, p.reads)
	if err != nil {
		return err
	}
	defer free()
	out := wire.PodLogs{PodID: c.Param("id"), Tail: tail, Logs: map[string]string{}}
	if from.worker != "" {
		return p.server().relay(c, from.worker, "/api/v1/pods/"+url.PathEscape(c.Param("id"))+"/logs", tail, &out, nil)
	}
	left := maxPodLogs
	for _, name := range containers {
		from.container = name
		text, err := p.server().whole(c, from, tail)
		if err != nil && len(containers) == 1 {
			return err
		}
		if err != nil {
			text = "Error: " + err.Error()
		}
		if len(text) > left {
			text = text[len(text)-left:]
		}
		left -= len(text)
		out.Logs[name] = strings.ToValidUTF8(text, "\uFFFD")
	}
	return c.Answer(http.StatusOK, out)
}

// maxPodLogs bounds the logs of all containers of a pod in one answer, in bytes.
const maxPodLogs = 2 * maxLogs

func (p *pods) stream(c *Call) error {
	tail, err := c.number("tail", defaultTail, 0, maxTail)
	if err != nil {
		return err
	}
	from, containers, err := p.source(c)
	if err != nil {
		return err
	}
	if len(containers) > 1 && from.worker == "" {
		return Refuse(http.StatusBadRequest, "the pod has several containers: choose one with container=")
	}
	from.container = containers[0]
	return p.server().follow(c, from, "/api/v1/pods/"+url.PathEscape(c.Param("id"))+"/logs/stream", tail)
}

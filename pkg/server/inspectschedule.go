package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/control/scheduler/allocation"
)

// inspectSchedule serves an explanation of how a pod would be scheduled: ?namespace=N&pod=P, and optionally &node=N,
// which can be repeated. It computes one explanation at a time, since each reads all pods; further requests wait.
func (l *plane) inspectSchedule() http.HandlerFunc {
	c := l.client(user.APIServerUser, user.SystemPrivilegedGroup)
	devices := allocation.New()
	turn := make(chan struct{}, 1)
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		key := ctrl.ObjectKey{Namespace: query.Get("namespace"), Name: query.Get("pod")}
		if key.Namespace == "" || key.Name == "" {
			answerError(w, apierrors.NewBadRequest("the query parameters namespace and pod are required"))
			return
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-r.Context().Done():
			return
		}
		e, err := scheduler.Explain(r.Context(),
			scheduler.Config{Client: c, Configuration: l.scheduling, Devices: devices, TaskPatience: l.process.TaskNodeTimeout},
			key)
		if err != nil {
			answerError(w, err)
			return
		}
		report := scheduleReport(e)
		if err := e.Only(query["node"]); err != nil {
			answerError(w, apierrors.NewBadRequest(err.Error()))
			return
		}
		report.Nodes = nodeVerdicts(e)
		answerJSON(w, report)
	}
}

func answerError(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	raw, err := json.Marshal(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	_, _ = w.Write(raw)
}

func scheduleReport(e scheduler.Explanation) socket.ScheduleReport {
	r := socket.ScheduleReport{
		Namespace: e.Pod.Namespace, Name: e.Pod.Name, Node: e.Pod.Spec.NodeName, SchedulerName: e.Pod.Spec.SchedulerName,
		Ours:  e.Profile != "",
		Group: e.Group, Summary: e.Summary, Ordered: e.Ordered, NodeCount: len(e.Nodes), Filters: []socket.ScheduleFilter{},
		Scores: []socket.ScheduleScore{},
	}
	r.NodeMissing = r.Node != "" &&
		!slices.ContainsFunc(e.Nodes, func(n scheduler.NodeVerdict) bool { return n.Name == r.Node })
	if r.Node == "" {
		r.NominatedNode = e.Pod.Status.NominatedNodeName
	}
	r.Waiting = r.Node != "" && e.Pod.Status.Phase == corev1.PodPending
	if m := e.Pod.Status.Message; e.Pod.Status.Phase == corev1.PodFailed && strings.HasPrefix(m, "Pod was rejected") {
		r.Refused = m
	}
	for _, g := range e.Pod.Spec.SchedulingGates {
		r.Gates = append(r.Gates, g.Name)
	}
	for _, name := range e.Filters {
		r.Filters = append(r.Filters, socket.ScheduleFilter{Name: name, Applies: slices.Contains(e.Applied, name)})
	}
	for _, s := range e.Scores {
		r.Scores = append(r.Scores, socket.ScheduleScore(s))
	}
	for _, n := range e.Nodes {
		if n.Fits {
			r.Fitting++
		}
	}
	return r
}

func nodeVerdicts(e scheduler.Explanation) []socket.ScheduleNode {
	shown := e.Nodes[:min(len(e.Nodes), socket.MostScheduleNodes)]
	out := make([]socket.ScheduleNode, 0, len(shown))
	for _, n := range shown {
		v := socket.ScheduleNode{Name: n.Name, Fits: n.Fits, Filters: map[string]string{}, Total: n.Total}
		for _, name := range e.Applied {
			v.Filters[name] = socket.FilterPassed
			if reasons := n.Refused[name]; len(reasons) > 0 {
				v.Filters[name] = strings.Join(reasons, ", ")
			}
		}
		for i, score := range n.Scores {
			if v.Scores == nil {
				v.Scores = make(map[string]int64, len(n.Scores))
			}
			v.Scores[e.Scores[i].Name] = score
		}
		out = append(out, v)
	}
	return out
}

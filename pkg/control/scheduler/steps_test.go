package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
)

// answering returns the result of bind for each binding.
type answering struct {
	client.Interface
	bind func() error
}

func (a answering) SubResource(string) ctrl.SubResourceClient { return answeringBinding{bind: a.bind} }

type answeringBinding struct {
	ctrl.SubResourceClient
	bind func() error
}

func (a answeringBinding) Create(context.Context, ctrl.Object, ctrl.Object, ...ctrl.SubResourceCreateOption) error {
	return a.bind()
}

// Reserves and preBinds run in order. A later failure releases exactly what was reserved, in reverse order.
func TestReservesAndPreBinds(t *testing.T) {
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c")
	for name, c := range map[string]struct {
		reserve, preBind, bind error
		bound                  bool // the informer reports the binding before the call returns
		steps                  []string
		again                  bool // the pod is retried
		counts                 bool // the pod still counts on its node
	}{
		"bound":           {steps: []string{"take", "prepare", "bind"}, counts: true},
		"a reserve fails": {reserve: errors.New("full"), steps: []string{"take", "release"}, again: true},
		"a preBind fails": {
			preBind: errors.New("not ready"), steps: []string{"take", "prepare", "release"}, again: true,
		},
		"a preBind misses":  {preBind: missing, steps: []string{"take", "prepare", "release"}, again: true},
		"the binding fails": {bind: errors.New("no"), steps: []string{"take", "prepare", "bind", "release"}, again: true},
		"the pod is gone":   {bind: missing, steps: []string{"take", "prepare", "bind", "release"}},
		"bound, with no answer": {
			bind: errors.New("timeout"), bound: true, steps: []string{"take", "prepare", "bind"}, counts: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []string
			s := &Scheduler{log: slog.New(slog.DiscardHandler), queue: newQueue(),
				state: newState(10, func(string) map[string]string { return nil })}
			s.guard = run.Guard{Log: s.log}
			s.metrics = newMetrics(nil, s)
			s.queue.later = func(*pending) {}
			defer s.drop()
			p := testPod("p")
			s.client = answering{bind: func() error {
				steps = append(steps, "bind")
				if c.bound {
					is := p.DeepCopy()
					is.Spec.NodeName = "a"
					podHandler{s}.OnUpdate(p, is)
				}
				return c.bind
			}}
			s.state.reserves = append([]reserve{{name: "test",
				take: func(_ *state, _ *podInfo, n *nodeInfo) error {
					require.Equal(t, "a", n.name)
					steps = append(steps, "take")
					return c.reserve
				},
				release: func(*state, *podInfo, *nodeInfo) { steps = append(steps, "release") },
			}}, reserves...)
			s.preBinds = []preBind{
				{name: "test", run: func(_ context.Context, _ client.Interface, pod *corev1.Pod, node string) error {
					require.Equal(t, []string{"p", "a"}, []string{pod.Name, node})
					require.True(t, s.mu.TryLock(), "it runs without the lock")
					s.mu.Unlock()
					steps = append(steps, "prepare")
					return c.preBind
				}},
			}
			nodeHandler{s}.OnAdd(testNode("a"), false)
			podHandler{s}.OnAdd(p, false)
			s.next()(context.Background())
			require.Equal(t, c.steps, steps)
			require.Equal(t, c.again, s.queue.pods[p.UID] != nil)
			require.Equal(t, c.counts, s.state.nodes["a"].pods[p.UID] != nil)
		})
	}
}

// statuses passes each status write to the test, which returns its result.
type statuses struct {
	client.Interface
	writes chan statusWrite
}

type statusWrite struct {
	patch  string
	answer chan error
}

func (c statuses) Status() ctrl.SubResourceWriter { return statusesWriter{writes: c.writes} }

type statusesWriter struct {
	ctrl.SubResourceWriter
	writes chan statusWrite
}

func (w statusesWriter) Update(_ context.Context, o ctrl.Object, _ ...ctrl.SubResourceUpdateOption) error {
	return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), errors.New("somebody has written it since"))
}

func (w statusesWriter) Patch(_ context.Context, o ctrl.Object, p ctrl.Patch, _ ...ctrl.SubResourcePatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	write := statusWrite{string(data), make(chan error)}
	w.writes <- write
	return <-write.answer
}

// If status writes of attempts overlap, the reason of the latest attempt remains. A failed write is repeated by the
// next attempt, and nothing is written after the pod has a node.
func TestTheLastReportWins(t *testing.T) {
	s := &Scheduler{
		log:   slog.New(slog.DiscardHandler),
		queue: newQueue(),
		state: newState(10, func(string) map[string]string { return nil }),
	}
	s.guard = run.Guard{Log: s.log}
	s.metrics = newMetrics(nil, s)
	s.queue.later = func(*pending) {}
	defer s.drop()
	writes := make(chan statusWrite)
	s.client = statuses{writes: writes}
	p := &pending{info: newPodInfo(testPod("p"))}
	attempt := func(reason string) <-chan struct{} {
		s.mu.Lock()
		p.report = nil
		if reason != "" {
			p.report = &report{pod: p.info.pod, message: reason}
		}
		s.mu.Unlock()
		ended := make(chan struct{})
		go func() { defer close(ended); s.report(context.Background(), p) }()
		return ended
	}
	first := attempt("one")
	w := <-writes
	require.Contains(t, w.patch, `"message":"one"`)
	second, third := attempt("two"), attempt("three")
	w.answer <- nil
	<-first
	w = <-writes
	require.Contains(t, w.patch, `"message":"three"`)
	w.answer <- errors.New("no answer")
	w = <-writes // the other write
	require.Contains(t, w.patch, `"message":"three"`)
	w.answer <- nil
	<-second
	<-third
	require.Nil(t, p.report)
	<-attempt("") // the pod has a node
}

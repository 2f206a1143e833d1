package trigger

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	"github.com/coracle-dev/coracle/pkg/systems/workers/subject"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

const patience = time.Minute

// plane is a real registry with a worker, whose queue is a channel.
type plane struct {
	t *testing.T
	client.Interface
	sent  chan queue.Message // without repetitions
	tries chan string        // the DedupIDs of all messages
	ended chan struct{}      // for each watch of objects that ended

	mu        sync.Mutex
	known     map[string]bool
	refusal   error // of the queue
	broken    error // of the status
	expired   bool  // watches cannot resume
	allowed   bool
	elsewhere bool
}

func newPlane(t *testing.T) *plane {
	k := own.Declare(own.Definition[*workers.Worker]{
		Kind: workers.GroupVersion.WithKind("Worker"), Plural: "workers",
		New:     func() *workers.Worker { return &workers.Worker{} },
		NewList: func() ctrl.ObjectList { return &workers.WorkerList{} },
		Default: workers.Default, Validate: workers.Validate, Source: workers.Source,
	}, func(w *workers.Worker) *workers.WorkerStatus { return &w.Status })
	kinds := builtin.Table(own.Extension{Kinds: []own.Kind{k}})
	e := registrytest.Start(t, registrytest.Options{Kinds: kinds, NoPlugins: true})
	p := &plane{
		t: t, Interface: e.As("admin"), known: map[string]bool{}, allowed: true,
		sent: make(chan queue.Message, 100), tries: make(chan string, 1000), ended: make(chan struct{}, 100),
	}
	e.Registry.UseReviews(func(_ context.Context, _ string, o runtime.Object) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		r := o.(*authorizationv1.SubjectAccessReview)
		a := r.Spec.ResourceAttributes
		r.Status.Allowed = p.allowed && r.Spec.User == "system:serviceaccount:ns:default" && a.Namespace == "ns" &&
			(a.Resource == "configmaps" || a.Resource == "events")
		return nil
	})
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	return p
}

func (p *plane) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *plane) Status() ctrl.SubResourceWriter { return planeStatus{p.Interface.Status(), p} }

type planeStatus struct {
	ctrl.SubResourceWriter
	p *plane
}

func (s planeStatus) Patch(ctx context.Context, o ctrl.Object, patch ctrl.Patch,
	opts ...ctrl.SubResourcePatchOption) error {
	s.p.mu.Lock()
	err := s.p.broken
	s.p.mu.Unlock()
	if err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, o, patch, opts...)
}

func (p *plane) Watch(ctx context.Context, list ctrl.ObjectList, opts ...ctrl.ListOption) (watch.Interface, error) {
	o := (&ctrl.ListOptions{}).ApplyOptions(opts)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expired && o.Raw.SendInitialEvents == nil {
		return nil, apierrors.NewResourceExpired("too old")
	}
	w, err := p.Interface.Watch(ctx, list, opts...)
	return &planeWatch{Interface: w, p: p}, err
}

type planeWatch struct {
	watch.Interface
	p *plane
}

func (w *planeWatch) Stop() {
	w.Interface.Stop()
	select {
	case w.p.ended <- struct{}{}:
	default:
	}
}

func (p *plane) send(_ context.Context, _ types.NamespacedName, m queue.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.tries <- m.DedupID:
	default:
	}
	if p.refusal != nil {
		return p.refusal
	}
	if !p.known[m.DedupID] {
		p.known[m.DedupID] = true
		p.sent <- m
	}
	return nil
}

// start runs the triggers until stop is called or the test ends.
func (p *plane) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	recorder := events.New(p, Component, "here", slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	all.Go(func() { recorder.Run(ctx) })
	ended := make(chan error, 1)
	subjects := subject.New(subject.Config{NATS: &queue.NATS{}})
	go func() {
		defer subjects.Close()
		ended <- Run(ctx, Config{
			Subjects: subjects,
			Client:   p, Send: p.send, Events: recorder, Logger: slog.New(slog.DiscardHandler), retry: time.Millisecond, ask: 1,
			Elsewhere: func(context.Context, *workers.Worker) bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.elsewhere
			},
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(p.t, <-ended)
		all.Wait()
	})
	p.t.Cleanup(stop)
	return stop
}

func (p *plane) create(o ctrl.Object) { require.NoError(p.t, p.Create(context.Background(), o)) }

func (p *plane) config(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "x"}},
		Data:       map[string]string{"k": value},
	}
}

func (p *plane) worker(list ...workers.WorkerTrigger) {
	p.create(&workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w"},
		Spec: workers.WorkerSpec{Image: "i", Triggers: list}})
}

// until waits for a state of the worker's first trigger.
func (p *plane) until(what string, is func(workers.TriggerStatus) bool) workers.TriggerStatus {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := p.Interface.Watch(ctx, &workers.WorkerList{})
	require.NoError(p.t, err)
	defer w.Stop()
	var last []workers.TriggerStatus
	for e := range w.ResultChan() {
		if o, ok := e.Object.(*workers.Worker); ok {
			last = o.Status.Triggers
		}
		if len(last) > 0 && is(last[0]) {
			return last[0]
		}
	}
	p.t.Fatalf("%s: %+v", what, last)
	return workers.TriggerStatus{}
}

func (p *plane) begun() {
	p.t.Helper()
	p.until("the trigger begins", func(s workers.TriggerStatus) bool {
		return s.Objects != nil && s.Objects.ResourceVersion != "" && s.Failure == ""
	})
}

type change struct {
	Type   string
	Object struct {
		APIVersion, Kind string
		Metadata         metav1.ObjectMeta
		Data             map[string]string
	}
}

// next returns the next message as text, such as "ADDED a=1".
func (p *plane) next() string {
	p.t.Helper()
	select {
	case m := <-p.sent:
		require.Equal(p.t, "application/json", m.ContentType)
		var c change
		require.NoError(p.t, json.Unmarshal(m.Payload, &c))
		require.Empty(p.t, c.Object.Metadata.ManagedFields)
		require.NotEmpty(p.t, c.Object.APIVersion+c.Object.Kind)
		return c.Type + " " + c.Object.Metadata.Name + "=" + c.Object.Data["k"]
	case <-time.After(patience):
		p.t.Fatal("no message")
		return ""
	}
}

func (p *plane) untilEvent(reason string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := p.Interface.Watch(ctx, &corev1.EventList{})
	require.NoError(p.t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if o, ok := e.Object.(*corev1.Event); ok && o.Reason == reason {
			require.Equal(p.t, "w", o.InvolvedObject.Name)
			return o.Message
		}
	}
	p.t.Fatal("no event " + reason)
	return ""
}

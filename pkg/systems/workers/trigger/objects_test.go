package trigger

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

func objectsOf(o workers.ObjectsTrigger) workers.WorkerTrigger {
	if o.Kind == "" {
		o.APIVersion, o.Kind = "v1", "ConfigMap"
	}
	return workers.WorkerTrigger{Objects: &o}
}

// TestObjects checks that a trigger sends the changes of objects that match its selectors, from its beginning on.
func TestObjects(t *testing.T) {
	p := newPlane(t)
	p.create(p.config("before", "1"))
	p.start()
	p.worker(objectsOf(workers.ObjectsTrigger{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}, FieldSelector: "metadata.name!=hidden",
	}))
	p.begun()
	other := p.config("other", "1")
	other.Labels = nil
	p.create(other)
	p.create(p.config("hidden", "1"))
	a := p.config("a", "1")
	p.create(a)
	require.Equal(t, "ADDED a=1", p.next())
	a.Data["k"] = "2"
	require.NoError(t, p.Update(t.Context(), a))
	require.Equal(t, "MODIFIED a=2", p.next())
	before := p.config("before", "1")
	before.Labels["app"] = "y"
	require.NoError(t, p.Update(t.Context(), before))
	require.Equal(t, "DELETED before=1", p.next(), "it ceased to match")
	require.NoError(t, p.Delete(t.Context(), a))
	require.Equal(t, "DELETED a=2", p.next())
}

// TestObjectsOfEvents checks that Events are sent, but not those that messages cause.
func TestObjectsOfEvents(t *testing.T) {
	p := newPlane(t)
	p.start()
	p.worker(objectsOf(workers.ObjectsTrigger{APIVersion: "v1", Kind: "Event",
		Changes: []workers.ObjectChange{workers.ObjectAdded}}))
	p.begun()
	event := func(name, by string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, ReportingController: by,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}}
	}
	p.create(event("dead", Component))
	seen := event("seen", "kubelet")
	p.create(seen)
	require.Equal(t, "ADDED seen=", p.next())
	seen.Count = 2
	require.NoError(t, p.Update(t.Context(), seen))
	p.create(event("last", "kubelet"))
	require.Equal(t, "ADDED last=", p.next(), "without the modification")
}

// TestObjectsAfterAKill checks that a server that was killed before it recorded the version sends the changes with the
// same DedupIDs, and sends the changes that happened meanwhile.
func TestObjectsAfterAKill(t *testing.T) {
	p := newPlane(t)
	stop := p.start()
	p.worker(objectsOf(workers.ObjectsTrigger{}))
	p.begun()
	p.set(func() { p.broken = errors.New("killed") })
	p.create(p.config("a", "1"))
	require.Equal(t, "ADDED a=1", p.next())
	first := <-p.tries
	stop()
	p.create(p.config("b", "1"))
	b := p.config("b", "1")
	require.NoError(t, p.Delete(t.Context(), b))
	p.set(func() { p.broken = nil })
	p.start()
	require.Equal(t, "ADDED b=1", p.next())
	require.Equal(t, "DELETED b=1", p.next())
	require.Equal(t, first, <-p.tries, "a is sent again, and refused")
}

// TestObjectsWithoutHistory checks what is sent after the history of changes was compacted.
func TestObjectsWithoutHistory(t *testing.T) {
	p := newPlane(t)
	p.create(p.config("same", "1"))
	p.create(p.config("deleted", "1"))
	b := p.config("b", "1")
	p.create(b)
	stop := p.start()
	p.worker(objectsOf(workers.ObjectsTrigger{}))
	p.begun()
	stop()
	p.create(p.config("z", "1"))
	p.create(p.config("a", "1"))
	b.Data["k"] = "2"
	require.NoError(t, p.Update(t.Context(), b))
	require.NoError(t, p.Delete(t.Context(), p.config("deleted", "1")))
	p.set(func() { p.expired = true })
	p.start()
	require.Equal(t, "MODIFIED z=1", p.next())
	require.Equal(t, "MODIFIED a=1", p.next())
	require.Equal(t, "MODIFIED b=2", p.next())
	p.create(p.config("c", "1"))
	require.Equal(t, "ADDED c=1", p.next(), "the same watch goes on")
	p.untilEvent("ChangesLost")
}

// TestObjectsNeedPermission checks that nothing is sent that the service account may not read, also when it could once.
func TestObjectsNeedPermission(t *testing.T) {
	p := newPlane(t)
	p.set(func() { p.allowed = false })
	p.start()
	p.worker(objectsOf(workers.ObjectsTrigger{}))
	denied := func(s workers.TriggerStatus) bool { return s.Failure != "" }
	s := p.until("no permission", denied)
	require.Contains(t, s.Failure, `service account default may not list configmaps`)
	require.Contains(t, s.Failure, `create rolebinding NAME -n ns --role=NAME --serviceaccount=ns:default`)
	require.Empty(t, s.Objects.ResourceVersion)
	p.set(func() { p.allowed = true })
	p.begun()
	p.create(p.config("a", "1"))
	require.Equal(t, "ADDED a=1", p.next())
	p.set(func() { p.allowed = false })
	p.create(p.config("b", "1"))
	p.until("the permission is gone", denied)
	require.Empty(t, p.sent)
	p.set(func() { p.allowed = true })
	require.Equal(t, "ADDED b=1", p.next())
}

// TestObjectsThatCannotBeWatched checks the reasons in the status.
func TestObjectsThatCannotBeWatched(t *testing.T) {
	p := newPlane(t)
	p.start()
	for want, o := range map[string]workers.ObjectsTrigger{
		"the server has no kind Thing in example.org/v1":   {APIVersion: "example.org/v1", Kind: "Thing"},
		"Node objects have no namespace":                   {APIVersion: "v1", Kind: "Node"},
		"may not list secrets":                             {APIVersion: "v1", Kind: "Secret"},
		"\"data.k\" is not a known field selector":         {FieldSelector: "data.k=1"},
		"the server has no kind ConfigMapList in v1":       {APIVersion: "v1", Kind: "ConfigMapList"},
		"the server has no kind Deployment in apps/v1beta": {APIVersion: "apps/v1beta", Kind: "Deployment"},
	} {
		p.worker(objectsOf(o))
		s := p.until(want, func(s workers.TriggerStatus) bool { return s.Failure != "" })
		require.Contains(t, s.Failure, want)
		require.NoError(t, p.Delete(t.Context(), &workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w"}}))
	}
}

// TestObjectsWaitForAFullQueue checks that changes stay in order while the queue refuses them, and that a change that
// is too large is left out.
func TestObjectsWaitForAFullQueue(t *testing.T) {
	p := newPlane(t)
	p.start()
	p.worker(objectsOf(workers.ObjectsTrigger{}))
	p.begun()
	p.set(func() { p.refusal = errors.New("the queue is full") })
	for _, name := range []string{"c", "b", "a"} {
		p.create(p.config(name, "1"))
	}
	p.until("full", func(s workers.TriggerStatus) bool { return s.Failure == "the queue is full" })
	first := <-p.tries
	for range 10 {
		require.Equal(t, first, <-p.tries, "the first change is tried again")
	}
	p.set(func() { p.refusal = nil })
	for _, name := range []string{"c", "b", "a"} {
		require.Equal(t, "ADDED "+name+"=1", p.next())
	}
	p.create(p.config("large", strings.Repeat("x", workers.MaxPayload-100)))
	p.until("too large", func(s workers.TriggerStatus) bool {
		return strings.Contains(s.Failure, "large in version") && strings.Contains(s.Failure, "at most 1048576")
	})
	p.create(p.config("d", "1"))
	require.Equal(t, "ADDED d=1", p.next())
	p.begun()
}

// TestObjectsEnd checks that watches end with the trigger, the worker, and the right to keep its queue.
func TestObjectsEnd(t *testing.T) {
	p := newPlane(t)
	p.start()
	key := ctrl.ObjectKey{Namespace: "ns", Name: "w"}
	ends := func() {
		t.Helper()
		select {
		case <-p.ended:
		case <-time.After(patience):
			t.Fatal("the watch goes on")
		}
	}
	change := func(f func(*workers.Worker)) {
		var is workers.Worker // shares memory with the cache
		require.NoError(t, p.Get(t.Context(), key, &is))
		w := is.DeepCopy()
		f(w)
		require.NoError(t, p.Patch(t.Context(), w, ctrl.MergeFrom(&is)))
	}
	p.worker(objectsOf(workers.ObjectsTrigger{}))
	p.begun()
	p.create(p.config("a", "1"))
	require.Equal(t, "ADDED a=1", p.next())
	change(func(w *workers.Worker) { w.Spec.Triggers[0].Objects.FieldSelector = "metadata.name=b" })
	ends()
	p.create(p.config("b", "1"))
	require.Equal(t, "ADDED b=1", p.next())
	p.set(func() { p.elsewhere = true })
	change(func(w *workers.Worker) { w.Spec.QueueLimit = 7 })
	ends()
	p.set(func() { p.elsewhere = false })
	change(func(w *workers.Worker) { w.Spec.QueueLimit = 8 })
	require.NoError(t, p.Delete(t.Context(), p.config("b", "1")))
	require.Equal(t, "DELETED b=1", p.next())
	require.NoError(t, p.Delete(t.Context(), &workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w"}}))
	ends()
}

// TestObjectsOfManyWorkers checks the bounds on watches.
func TestObjectsOfManyWorkers(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the followers end at once
	o := newObjects(ctx, &Config{Logger: slog.New(slog.DiscardHandler)}, nil)
	defer o.all.Wait()
	status := []workers.TriggerStatus{{Objects: &workers.ObjectsStatus{}}}
	follow := func(ns, name string) (string, time.Duration) {
		w := &workers.Worker{ObjectMeta: metav1.ObjectMeta{UID: types.UID(ns + name)},
			Spec: workers.WorkerSpec{Triggers: []workers.WorkerTrigger{objectsOf(workers.ObjectsTrigger{})}}}
		again := o.update(types.NamespacedName{Namespace: ns, Name: name}, w, status)
		return status[0].Failure, again
	}
	for n := range maxFollowers {
		why, _ := follow(string(rune('a'+n/maxInNamespace)), string(rune(' '+n%maxInNamespace)))
		require.Empty(t, why)
	}
	why, again := follow("a", "more")
	require.Contains(t, why, "100 of at most 100 in the namespace")
	require.Equal(t, limitAfter, again)
	why, _ = follow("z", "more")
	require.Contains(t, why, "1000 of at most 1000 in all")
	o.update(types.NamespacedName{Namespace: "a", Name: " "}, &workers.Worker{}, nil)
	why, _ = follow("a", "more")
	require.Empty(t, why)
}

package controller

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/packed"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

func verdictOf(t *testing.T, c *check.Checker, source *corev1.ConfigMap, p buildbarn.Part) check.Verdict {
	t.Helper()
	r := requestOf(source, defaulted(p))
	require.NoError(t, c.Check(t.Context(), "ns", func() check.Request { return r }))
	v, known, err := c.Known(r)
	require.NoError(t, err)
	require.True(t, known)
	for _, f := range v.Facts {
		require.NotNil(t, f)
	}
	return v
}

// settleParts plans all parts, each with the others' Services, until they are ready.
func settleParts(t *testing.T, c *check.Checker, source *corev1.ConfigMap, parts []buildbarn.Part) {
	t.Helper()
	worlds, named, storage := map[string]*world{}, map[string]*corev1.Service{}, map[string]int32{}
	schedulers, frontends := map[string]*protocol.Facts{}, map[string]*protocol.Facts{}
	for _, p := range parts {
		v := verdictOf(t, c, source, p)
		w := &world{
			Observed{
				Part:       p,
				Source:     source,
				Files:      v.Files,
				Facts:      v.Facts,
				Named:      named,
				Storage:    storage,
				Schedulers: schedulers,
				Frontends:  frontends,
				Queue:      &metrics.Queue{},
			},
		}
		worlds[p.GetName()] = w
		switch p := defaulted(p).(type) {
		case *buildbarn.BuildbarnStorage:
			storage[p.Name] = *p.Spec.Replicas
		case *buildbarn.BuildbarnScheduler:
			schedulers[p.Name] = v.Facts[0]
		case *buildbarn.BuildbarnFrontend:
			require.NotEmpty(t, v.Facts[0].Routes)
			frontends[p.Name] = v.Facts[0]
		}
		if s := service(defaulted(p), p); s != nil {
			named[s.Name] = s
		}
	}
	for name, w := range worlds {
		for range 3 {
			w.apply(Plan(w.Observed, now))
		}
		require.Equal(t, buildbarn.Ready, w.Part.Observed().State, "%s: %+v", name, w.Part.Observed().Conditions)
		require.Equal(t, metav1.ConditionTrue, conditionOf(w.Part, buildbarn.ConditionConfigFits).Status, "%s: %+v", name,
			w.Part.Observed().Conditions)
	}
}

// TestExampleFits checks that the example causes neither errors nor warnings.
func TestExampleFits(t *testing.T) {
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join("../../../../manifests/examples/buildbarn", name))
		require.NoError(t, err)
		return text
	}
	source := &corev1.ConfigMap{}
	require.NoError(t, yaml.Unmarshal(read("config.yaml"), source))
	var parts []buildbarn.Part
	for _, text := range append(bytes.Split(read("parts.yaml"), []byte("\n---\n")), read("browser.yaml")) {
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal(text, &kind))
		part := map[string]buildbarn.Part{
			"BuildbarnStorage": &buildbarn.BuildbarnStorage{}, "BuildbarnScheduler": &buildbarn.BuildbarnScheduler{},
			"BuildbarnFrontend": &buildbarn.BuildbarnFrontend{},
			"BuildbarnWorker":   &buildbarn.BuildbarnWorker{}, "BuildbarnBrowser": &buildbarn.BuildbarnBrowser{},
		}[kind.Kind]
		require.NoError(t, yaml.Unmarshal(text, part))
		part.SetNamespace("ns")
		parts = append(parts, part)
	}
	require.Len(t, parts, 5)
	settleParts(t, check.New(packed.Open), source, parts)
}

// TestRenderedFits checks that a farm's rendered configuration fits the farm's parts.
func TestRenderedFits(t *testing.T) {
	for _, mirrored := range []bool{false, true} {
		b := &buildbarn.Buildbarn{
			ObjectMeta: metav1.ObjectMeta{Name: "farm", Namespace: "ns"},
			Spec: buildbarn.BuildbarnSpec{
				Workers: []buildbarn.FarmWorkers{{Name: "shell", RunnerImage: "busybox", Scale: &buildbarn.FarmScale{Max: 2}},
					{
						Name: "gpu", RunnerImage: "busybox", InstanceNamePrefix: "gpu",
						Platform: []buildbarn.PlatformProperty{{Name: "b", Value: "1"}, {Name: "a", Value: "2"}},
					}},
			},
		}
		b.Spec.Storage.Mirrored = mirrored
		a := PlanFarm(FarmObserved{Farm: b}, now)
		var parts []buildbarn.Part
		for _, o := range a.Create {
			if p, ok := o.(buildbarn.Part); ok {
				parts = append(parts, p)
			}
		}
		require.Len(t, parts, 5)
		buildbarn.DefaultFarm(b)
		files, err := config.Render(b, nil)
		require.NoError(t, err)
		settleParts(t, check.New(packed.Open),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: config.ConfigMapOf("farm"), Namespace: "ns"}, Data: files},
			parts)
	}
}

// TestDoubts checks that an impossible configuration is refused while the pods keep the previous one, and that a
// possible mistake becomes a warning once the part is ready and disappears after a correction.
func TestDoubts(t *testing.T) {
	at := protocol.Place{Field: "f", Line: "storage.jsonnet:7"}
	w := newWorld("storage")
	facts := &protocol.Facts{
		Servers: []protocol.Server{{Place: at, Address: ":8981"}},
		Files:   []protocol.File{{Place: at, Path: "/storage-cas/blocks", Bytes: 1 << 30}},
	}
	w.Facts = []*protocol.Facts{facts}
	w.settle(t)
	require.Equal(t, metav1.ConditionTrue, conditionOf(w.Part, buildbarn.ConditionConfigFits).Status)
	hash := w.Part.Observed().ConfigHash

	facts.Files[0].Bytes = 1 << 40
	w.Source.Data["storage.jsonnet"] = "{ larger: 1 }"
	w.settle(t)
	c := conditionOf(w.Part, buildbarn.ConditionConfigValid)
	require.Equal(t, "ConfigInvalid", c.Reason)
	require.Contains(t, c.Message, "storage.jsonnet:7: f: /storage-cas/blocks has 1048576 MiB")
	require.Contains(t, c.Message, "the pods keep the last valid one")
	require.Equal(t, hash, w.Part.Observed().ConfigHash)

	// A claim that was enlarged, or is being enlarged, is large enough.
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "cas-x-0"}}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Ti")}
	w.Claims = []*corev1.PersistentVolumeClaim{claim}
	w.settle(t)
	require.Equal(t, "Valid", conditionOf(w.Part, buildbarn.ConditionConfigValid).Reason)

	w = newWorld("frontend")
	w.Facts = []*protocol.Facts{
		{
			Servers: []protocol.Server{{Place: at, Address: ":8980"}},
			Clients: []protocol.Client{{Place: at, Address: "sheduler:8982"}},
		},
	}
	a := Plan(w.checked(), now)
	w.apply(a)
	require.Empty(t, conditionOf(w.Part, buildbarn.ConditionConfigFits), "the other objects may be about to come")
	w.settle(t)
	c = conditionOf(w.Part, buildbarn.ConditionConfigFits)
	require.Equal(t, "Doubtful", c.Reason)
	require.Contains(t, c.Message, "sheduler:8982 names no existing Service")
	require.Equal(t, buildbarn.Ready, w.Part.Observed().State, "it may be meant")
	w.Facts[0].Servers[0].Address = ":8989"
	w.settle(t)
	require.Equal(t, "ConfigInvalid", conditionOf(w.Part, buildbarn.ConditionConfigValid).Reason)
	require.Equal(t, "Doubtful", conditionOf(w.Part, buildbarn.ConditionConfigFits).Reason, "of what the pods keep")
	w.Facts[0].Servers[0].Address = ":8980"
	w.Named = map[string]*corev1.Service{
		"sheduler": {
			ObjectMeta: metav1.ObjectMeta{Name: "sheduler"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8982}}},
		},
	}
	w.settle(t)
	require.Equal(t, metav1.ConditionTrue, conditionOf(w.Part, buildbarn.ConditionConfigFits).Status)
	for _, unknown := range [][]*protocol.Facts{nil, {nil}, {w.Facts[0], nil}} {
		before := w.Part.DeepCopyObject().(buildbarn.Part)
		w.Facts = unknown
		w.settle(t)
		require.Empty(t, conditionOf(w.Part, buildbarn.ConditionConfigFits),
			"of fields that are not compared nothing is known")
		w.Part = before
	}
}

// TestDoubtsWaitForOthersFiles checks that a worker keeps its warnings until the files of its farm's other parts are
// checked, and that it starts these checks.
func TestDoubtsWaitForOthersFiles(t *testing.T) {
	w := newWorld("worker")
	queue := protocol.Queue{Place: protocol.Place{Field: "f", Line: "worker.jsonnet:7"}, Prefix: "gpu"}
	w.Facts = []*protocol.Facts{
		{
			Queues:  []protocol.Queue{queue},
			Clients: []protocol.Client{{Place: protocol.Place{Field: "scheduler.address"}, Address: "scheduler:8983"}},
		},
	}
	named := map[string]*corev1.Service{
		"scheduler": {
			ObjectMeta: metav1.ObjectMeta{Name: "scheduler"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8983}}},
		},
	}
	w.Named, w.Schedulers = named, map[string]*protocol.Facts{"scheduler": {Queues: []protocol.Queue{{Prefix: "other"}}}}
	w.settle(t)
	require.Contains(t, conditionOf(w.Part, buildbarn.ConditionConfigFits).Message,
		"has no queue for")

	c, woken := testChecks(t, packed.Open)
	scheduler := &buildbarn.BuildbarnScheduler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "scheduler"}}
	source := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: buildbarn.DefaultConfigMap},
		Data:       map[string]string{"scheduler.jsonnet": "{}"},
	}
	objects := fake.NewClientBuilder().WithScheme(client.Scheme()).WithObjects(scheduler, source).Build()
	r := &reconciler{Env: engine.Env{Cache: objects}, checks: c}
	observe := func() {
		w.Awaited = false
		require.NoError(t, r.observeFarm(t.Context(), w.Part, &w.Observed))
	}
	observe()
	require.True(t, w.Awaited)
	require.Nil(t, w.Schedulers["scheduler"])
	w.settle(t)
	require.Equal(t, "Doubtful", conditionOf(w.Part, buildbarn.ConditionConfigFits).Reason, "as it was")
	require.Equal(t, w.Part.GetNamespace()+"/"+w.Part.GetName(), <-woken)
	observe()
	require.False(t, w.Awaited)
	w.settle(t)
	require.Equal(t, metav1.ConditionTrue, conditionOf(w.Part, buildbarn.ConditionConfigFits).Status)
}

// TestChecking checks that pods keep their configuration, and the condition its status, while files are checked.
func TestChecking(t *testing.T) {
	w := newWorld("scheduler")
	w.Checking = true
	a := Plan(w.Observed, now)
	for _, o := range a.Create {
		require.NotContains(t, []string{"Deployment", "ConfigMap"}, kindName(o))
	}
	require.Empty(t, conditionOf(w.Part, buildbarn.ConditionConfigValid))
	w.Checking = false
	w.settle(t)
	w.Checking = true
	a = Plan(w.Observed, now)
	require.Empty(t, append(append(a.Create, a.Update...), a.Delete...))
	require.Equal(t, *w.Part.Observed(), a.Status)
}

// testChecks returns checks. woken receives the parts that they wake, as namespace/name.
func testChecks(t *testing.T, open func() (*os.File, error)) (c *checks, woken chan string) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	woken = make(chan string, 1000)
	return &checks{
		checker: check.New(open), begin: func(f func(context.Context)) { wg.Go(func() { f(ctx) }) },
		wake: func(r engine.Request) { woken <- r.String() },
		now:  func() time.Time { return now }, asked: map[engine.Request]*question{},
	}, woken
}

// TestChecksWaitForNobodyElse checks that a namespace with endless checks does not delay others, and that each part
// has one check at a time, of its latest files.
func TestChecksWaitForNobodyElse(t *testing.T) {
	held, opened := make(chan struct{}), make(chan struct{}, 100)
	var free atomic.Bool
	c, woken := testChecks(t, func() (*os.File, error) {
		wait := !free.Load()
		opened <- struct{}{}
		if wait {
			<-held
		}
		return packed.Open()
	})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	ask := func(namespace string, n int, version string) check.Request {
		r := check.Request{
			All:       map[string]string{"storage.jsonnet": fmt.Sprintf("{ n: %d }", n)},
			Component: "storage",
			Fields:    true,
		}
		require.NoError(t, c.ask(engine.RequestFor(namespace, fmt.Sprint(n)), r, version))
		return r
	}
	for i := range 9 {
		ask("evil", i, "1")
		ask("evil", i, "2")
	}
	<-opened
	<-opened // one namespace gets no more checks
	free.Store(true)
	r := ask("good", 9, "1")
	require.Equal(t, "good/9", <-woken)
	_, known, err := c.checker.Known(r)
	require.ErrorContains(t, err, "there is no such field")
	require.True(t, known)
	release()
	for range 9 {
		require.Contains(t, <-woken, "evil/")
	}
	require.Empty(t, woken, "each was checked once")
	require.Empty(t, c.asked)
}

// TestFailedChecks checks that failures are reported, and that the check is repeated later or for another version.
func TestFailedChecks(t *testing.T) {
	c, woken := testChecks(t, func() (*os.File, error) { return nil, os.ErrPermission })
	r, part := check.Request{All: map[string]string{"storage.jsonnet": "{}"}, Component: "storage"}, engine.RequestFor(
		"ns", "x")
	for _, version := range []string{"1", "2"} {
		require.NoError(t, c.ask(part, r, version))
		<-woken
		require.ErrorIs(t, c.ask(part, r, version), os.ErrPermission)
	}
	c.now = func() time.Time { return now.Add(refusedAgain) }
	require.NoError(t, c.ask(part, r, "2"))
	<-woken
	c.forget(part)
	require.Empty(t, c.asked)
}

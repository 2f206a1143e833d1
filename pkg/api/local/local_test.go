package local_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlruntime "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/clienttest"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns an engine with two namespaces.
func start(t testing.TB, ring int) (*registrytest.Engine, client.Interface) {
	t.Helper()
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds(), RingSize: ring, NoPlugins: true})
	c := e.As("admin")
	for _, ns := range []string{"default", "work"} {
		require.NoError(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	}
	return e, c
}

func admin(t testing.TB) client.Interface {
	t.Helper()
	_, c := start(t, 0)
	return c
}

func TestMapperKnowsEveryRow(t *testing.T) {
	e, c := start(t, 0)
	for _, r := range e.Kinds.Table().All() {
		m, err := c.RESTMapper().RESTMapping(r.GroupVersionKind.GroupKind(), r.Version)
		require.NoError(t, err)
		require.Equal(t, r.GVR(), m.Resource)
		require.Equal(t, r.Namespaced, m.Scope.Name() == meta.RESTScopeNameNamespace, r.Kind)
		singular, err := c.RESTMapper().ResourceSingularizer(r.Plural)
		require.NoError(t, err)
		require.Equal(t, r.Singular, singular)
	}
}

func TestClientConforms(t *testing.T) {
	clienttest.Run(t, admin(t), "work")
}

// Unstructured objects work for kinds with and without a Go type, and share no memory with the cache.
func TestClientTakesUnstructuredObjects(t *testing.T) {
	e, c := start(t, 0)
	ctx := t.Context()
	row := own.Untyped{
		Kind:   schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"},
		Plural: "things",
		Status: true,
	}.Row()
	require.NoError(t, e.Kinds.Change(ctx, nil, []*kind.Resource{row}))
	for _, gvk := range []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("ConfigMap"), row.GroupVersionKind} {
		object := func(name string) *unstructured.Unstructured {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(gvk)
			u.SetNamespace("work")
			u.SetName(name)
			u.SetLabels(map[string]string{"app": "x"})
			u.Object["data"] = map[string]any{"k": "v"}
			return u
		}
		w, err := c.Watch(ctx, listOf(gvk), ctrl.InNamespace("work"))
		require.NoError(t, err)
		u := object("a")
		require.NoError(t, c.Create(ctx, u))
		require.NotEmpty(t, u.GetUID())
		ev := <-w.ResultChan()
		require.Equal(t, gvk, ev.Object.GetObjectKind().GroupVersionKind())
		w.Stop()
		got := object("")
		require.NoError(t, c.Get(ctx, ctrl.ObjectKeyFromObject(u), got))
		require.Equal(t, u.Object, got.Object)
		got.SetLabels(map[string]string{"changed": "by its reader"})
		got.Object["data"].(map[string]any)["k"] = "changed"
		l := listOf(gvk)
		require.NoError(t, c.List(ctx, l, ctrl.InNamespace("work"), ctrl.MatchingLabels{"app": "x"}))
		require.Len(t, l.Items, 1)
		require.Equal(t, map[string]any{"k": "v"}, l.Items[0].Object["data"])
		l.Items[0].Object["data"] = map[string]any{"k": "w"}
		require.NoError(t, c.Update(ctx, &l.Items[0]))
		require.NoError(t, c.Patch(ctx, object("a"), ctrl.RawPatch(types.MergePatchType, []byte(`{"data":{"more":"y"}}`))))
		require.NoError(t, c.Get(ctx, ctrl.ObjectKeyFromObject(u), got))
		require.Equal(t, map[string]any{"k": "w", "more": "y"}, got.Object["data"])

		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(gvk)
		require.NoError(t, c.Get(ctx, ctrl.ObjectKeyFromObject(u), m))
		require.Equal(t, u.GetUID(), m.UID)
		require.Equal(t, "x", m.Labels["app"])
		require.NoError(t, c.Delete(ctx, object("a")))
		require.True(t, apierrors.IsNotFound(c.Get(ctx, ctrl.ObjectKeyFromObject(u), got)))
	}
	var unknown unstructured.Unstructured
	unknown.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Other"})
	require.True(t, meta.IsNoMatchError(c.Get(ctx, ctrl.ObjectKey{Name: "a"}, &unknown)))
	require.NoError(t, e.Kinds.Change(ctx, []*kind.Resource{row}, nil))
	unknown.SetGroupVersionKind(row.GroupVersionKind)
	require.True(t, meta.IsNoMatchError(c.Get(ctx, ctrl.ObjectKey{Name: "a"}, &unknown)))
}

func listOf(gvk schema.GroupVersionKind) *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	gvk.Kind += "List"
	l.SetGroupVersionKind(gvk)
	return l
}

// The scale of an unstructured object can be written as an unstructured object.
func TestUnstructuredScale(t *testing.T) {
	c, ctx := admin(t), t.Context()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	require.NoError(t, c.Create(ctx, d))
	u, scale := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	u.SetNamespace("work")
	u.SetName("web")
	scale.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"})
	require.NoError(t, c.SubResource("scale").Get(ctx, u, scale))
	require.NoError(t, unstructured.SetNestedField(scale.Object, int64(3), "spec", "replicas"))
	require.NoError(t, c.SubResource("scale").Update(ctx, u, ctrl.WithSubResourceBody(scale)))
	require.NoError(t, c.Get(ctx, ctrl.ObjectKeyFromObject(d), d))
	require.EqualValues(t, 3, *d.Spec.Replicas)
}

func TestClientSharesWhatItReads(t *testing.T) {
	c, ctx := admin(t), context.Background()
	require.NoError(t,
		c.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "a"}, Data: map[string]string{"k": "v"},
		}))
	var one, two corev1.ConfigMap
	require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Namespace: "work", Name: "a"}, &one))
	require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Namespace: "work", Name: "a"}, &two))
	require.NotSame(t, &one, &two)
	require.Equal(t, fmt.Sprintf("%p", one.Data), fmt.Sprintf("%p", two.Data), "no copy below the first level")
}

func TestEventsHaveTwoFaces(t *testing.T) {
	c, ctx := admin(t), context.Background()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "work", Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "work", Name: "p"},
		Message:        "hello",
	}
	require.NoError(t, c.Create(ctx, e))
	var newer eventsv1.Event
	require.NoError(t, c.Get(ctx, ctrl.ObjectKeyFromObject(e), &newer))
	require.Equal(t, "hello", newer.Note)
	var l eventsv1.EventList
	require.NoError(t, c.List(ctx, &l, ctrl.InNamespace("work"), ctrl.MatchingFields{"regarding.name": "p"}))
	require.Len(t, l.Items, 1)
}

func TestRecorderCountsRepeats(t *testing.T) {
	c := admin(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, &corev1.EventList{}, ctrl.InNamespace("work"))
	require.NoError(t, err)
	rec := events.New(c, "test", "", nil)
	ended := make(chan struct{})
	go func() { defer close(ended); rec.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "p", UID: "u"}}
	rec.Event(pod, corev1.EventTypeNormal, "Twice", "again")
	next := func() *corev1.Event {
		e, _ := (<-w.ResultChan()).Object.(*corev1.Event)
		require.NotNil(t, e, "no event came")
		return e
	}
	first := next()
	require.Equal(t, "test", first.Source.Component)
	rec.Event(pod, corev1.EventTypeNormal, "Twice", "again")
	second := next()
	require.Equal(t, first.Name, second.Name)
	require.Equal(t, int32(2), second.Count)
}

func TestListersReadTheCache(t *testing.T) {
	e, c := start(t, 0)
	ctx, f := context.Background(), e.Clients.Informers()
	lister := f.Core().V1().ConfigMaps().Lister()
	require.NoError(t,
		f.Core().V1().ConfigMaps().Informer().AddIndexers(toolscache.Indexers{"k": func(o any) ([]string, error) {
			return []string{o.(*corev1.ConfigMap).Data["k"]}, nil
		}}))
	require.NoError(t,
		c.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "a", Labels: map[string]string{"l": ""}},
			Data:       map[string]string{"k": "v"},
		}))
	m, err := lister.ConfigMaps("work").Get("a")
	require.NoError(t, err)
	require.Equal(t, "v", m.Data["k"])
	_, err = lister.ConfigMaps("work").Get("b")
	require.Error(t, err)
	all, err := lister.ConfigMaps("work").List(labels.SelectorFromSet(labels.Set{"l": ""}))
	require.NoError(t, err)
	require.Len(t, all, 1)
	none, err := lister.ConfigMaps("default").List(labels.Everything())
	require.NoError(t, err)
	require.Empty(t, none)
	found, err := f.Core().V1().ConfigMaps().Informer().GetIndexer().ByIndex("k", "v")
	require.NoError(t, err)
	require.Len(t, found, 1)
	namespaces, err := f.Core().V1().Namespaces().Lister().List(labels.Everything())
	require.NoError(t, err)
	require.Len(t, namespaces, 2)
	require.True(t, f.Scheduling().V1().PriorityClasses().Informer().HasSynced())
	absent := f.Admissionregistration().V1beta1().ValidatingWebhookConfigurations()
	nothing, err := absent.Lister().List(labels.Everything())
	require.NoError(t, err, "a kind that is not served has no objects")
	require.Empty(t, nothing)
}

// A handler whose watcher expires because it is slow gets the differences, and ends with the current state.
func TestInformerOfASlowHandler(t *testing.T) {
	_, c := start(t, 64)
	ctx := context.Background()
	i, err := c.Cache().GetInformer(ctx, &corev1.ConfigMap{})
	require.NoError(t, err)
	entered, release, end := make(chan struct{}, 1000), make(chan struct{}), make(chan struct{})
	state := map[string]string{}
	see := func(o any) *corev1.ConfigMap {
		if d, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		return o.(*corev1.ConfigMap)
	}
	_, err = i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			m := see(o)
			_, twice := state[m.Name]
			require.False(t, twice, "%s added twice", m.Name)
			state[m.Name] = m.Data["k"]
			entered <- struct{}{}
			<-release
			if m.Name == "end" {
				close(end)
			}
		},
		UpdateFunc: func(o, n any) {
			require.Equal(t, state[see(o).Name], see(o).Data["k"], "the old state is the one told before")
			state[see(n).Name] = see(n).Data["k"]
		},
		DeleteFunc: func(o any) {
			require.Contains(t, state, see(o).Name)
			delete(state, see(o).Name)
		},
	})
	require.NoError(t, err)
	create := func(name, k string) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: name}, Data: map[string]string{"k": k}}
		require.NoError(t, c.Create(ctx, m))
		return m
	}
	changed := create("changed", "1")
	<-entered // the handler is now blocked
	gone := create("gone", "1")
	for n := range 200 {
		changed.Data["k"] = fmt.Sprint(n)
		require.NoError(t, c.Update(ctx, changed))
	}
	require.NoError(t, c.Delete(ctx, gone))
	create("end", "")
	close(release)
	<-end
	require.Equal(t, map[string]string{"changed": "199", "end": ""}, state)
}

// controller-runtime's manager can run a controller on this cache and client.
func TestManagerRunsAController(t *testing.T) {
	c := admin(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mgr, err := ctrlruntime.NewManager(&rest.Config{Host: "127.0.0.1:1"}, manager.Options{
		Scheme:    client.Scheme(),
		NewCache:  func(*rest.Config, ctrlcache.Options) (ctrlcache.Cache, error) { return c.Cache(), nil },
		NewClient: func(*rest.Config, ctrl.Options) (ctrl.Client, error) { return c, nil },
		Metrics:   metricsserver.Options{BindAddress: "0"},
	})
	require.NoError(t, err)
	// Names repeat with -count.
	err = ctrlruntime.NewControllerManagedBy(mgr).Named("labels").For(&corev1.ConfigMap{}).WithOptions(controller.Options{
		SkipNameValidation: new(true),
	}).Complete(
		reconcile.AsReconciler(mgr.GetClient(), reconcile.ObjectReconciler[*corev1.ConfigMap](label{mgr.GetClient()})))
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w, err := c.Watch(ctx, &corev1.ConfigMapList{}, ctrl.InNamespace("work"), ctrl.HasLabels{"seen"})
	require.NoError(t, err)
	require.NoError(t, c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "a"}}))
	select {
	case e := <-w.ResultChan():
		require.Equal(t, "a", e.Object.(*corev1.ConfigMap).Name)
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("the controller did nothing")
	}
	cancel()
	require.NoError(t, <-ended)
	i, err := c.Cache().GetInformer(context.Background(), &corev1.ConfigMap{})
	require.NoError(t, err)
	require.True(t, i.IsStopped())
}

type label struct{ ctrl.Client }

func (l label) Reconcile(ctx context.Context, m *corev1.ConfigMap) (reconcile.Result, error) {
	if m.Namespace != "work" || m.Labels["seen"] != "" {
		return reconcile.Result{}, nil
	}
	m = m.DeepCopy()
	m.Labels = map[string]string{"seen": "yes"}
	return reconcile.Result{}, l.Update(ctx, m)
}

// As upstream, reads fail if an object cannot be decoded, so that it does not disappear silently.
func TestClientTellsOfUnreadableObjects(t *testing.T) {
	e, c := start(t, 0)
	ctx := t.Context()
	rev, err := e.Store.Create(ctx, "/registry/configmaps/work/bad", []byte("garbage"), 0)
	require.NoError(t, err)
	require.NoError(t, e.Cache.WaitFor(ctx, rev))
	const why = "failed to read one or more configmaps from the storage: /registry/configmaps/work/bad"
	require.ErrorContains(t, c.Get(ctx, ctrl.ObjectKey{Namespace: "work", Name: "bad"}, &corev1.ConfigMap{}), why)
	require.ErrorContains(t, c.List(ctx, &corev1.ConfigMapList{}), why)
	require.ErrorContains(t, c.DeleteAllOf(ctx, &corev1.ConfigMap{}, ctrl.InNamespace("work")), why)
	require.NoError(t, c.List(ctx, &corev1.ConfigMapList{}, ctrl.InNamespace("default")))
	require.NoError(t, c.List(ctx, &corev1.SecretList{}))

	_, err = e.Store.Delete(ctx, "/registry/configmaps/work/bad", rev)
	require.NoError(t, err)
	rev, err = e.Store.Revision(ctx)
	require.NoError(t, err)
	require.NoError(t, e.Cache.WaitFor(ctx, rev))
	require.NoError(t, c.List(ctx, &corev1.ConfigMapList{}))
}

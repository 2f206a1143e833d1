package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

func thing(i int) *kind.Resource {
	return own.Untyped{
		Kind: schema.GroupVersionKind{
			Group:   fmt.Sprintf("group%d.example.org", i%7),
			Version: "v1",
			Kind:    fmt.Sprintf("Thing%03d", i),
		},
		Plural: fmt.Sprintf("thing%03ds", i), Status: true, ShortNames: []string{fmt.Sprintf("t%d", i)}, Hash: fmt.Sprint(i),
	}.Row()
}

func (w *world) dynamic(c *http.Client) dynamic.Interface {
	d, err := dynamic.NewForConfigAndClient(&rest.Config{Host: w.url, QPS: -1}, c)
	require.NoError(w.t, err)
	return d
}

func object(r *kind.Resource, name string) *unstructured.Unstructured {
	u := r.New().(*unstructured.Unstructured)
	u.SetName(name)
	u.Object["spec"] = map[string]any{"size": int64(1)}
	return u
}

// A kind added at run time is served at once, and a removed kind is gone at once.
func TestKindThatComesLater(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.namespace("work")
	r := thing(1)
	d := w.dynamic(w.http).Resource(r.GVR()).Namespace("work")
	_, err := d.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	before := w.do(w.http, "GET", "/openapi/v3", "")
	require.NoError(t, w.cfg.Kinds.Change(ctx, nil, []*kind.Resource{r}))

	disc, err := clientdiscovery.NewDiscoveryClientForConfigAndClient(&rest.Config{Host: w.url, QPS: -1}, w.http)
	require.NoError(t, err)
	list, err := disc.ServerResourcesForGroupVersion(r.GroupVersion().String())
	require.NoError(t, err)
	require.Equal(t, []string{"thing001s", "thing001s/status"},
		[]string{list.APIResources[0].Name, list.APIResources[1].Name})
	require.NotEqual(t, before.header.Get("ETag"), w.do(w.http, "GET", "/openapi/v3", "").header.Get("ETag"))
	doc := w.do(w.http, "GET", "/openapi/v3/apis/group1.example.org/v1", "")
	require.Equal(t, http.StatusOK, doc.code, "%s", doc.body)
	require.Contains(t, string(doc.body), `"org.example.group1.v1.Thing001"`)
	require.Contains(t, string(doc.body), `"/apis/group1.example.org/v1/namespaces/{namespace}/thing001s/{name}/status"`)
	require.Contains(t, string(w.do(w.http, "GET", "/openapi/v2", "").body), `"org.example.group1.v1.Thing001List"`)

	events, err := d.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer events.Stop()
	made, err := d.Create(ctx, object(r, "one"), metav1.CreateOptions{FieldManager: "test"})
	require.NoError(t, err)
	require.EqualValues(t, 1, made.GetGeneration())
	require.Equal(t, "test", made.GetManagedFields()[0].Manager)
	require.Equal(t, watch.Added, (<-events.ResultChan()).Type)
	made.Object["spec"] = map[string]any{"size": int64(2)}
	made.Object["status"] = map[string]any{"ready": true} // ignored, because status is a subresource
	made, err = d.Update(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, made.GetGeneration())
	require.NotContains(t, made.Object, "status")
	made.Object["status"] = map[string]any{"ready": true}
	made.Object["spec"] = map[string]any{"size": int64(9)}
	made, err = d.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, made.GetGeneration())
	size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size")
	require.EqualValues(t, 2, size)
	made, err = d.Patch(ctx, "one", types.MergePatchType, []byte(`{"spec":{"colour":"red"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, made.GetGeneration())
	_, err = d.Patch(ctx, "one", types.StrategicMergePatchType, []byte(`{"spec":{}}`), metav1.PatchOptions{})
	require.True(t, apierrors.IsUnsupportedMediaType(err), "%v", err)
	applied := object(r, "two")
	_, err = d.Apply(ctx, "two", applied, metav1.ApplyOptions{FieldManager: "a"})
	require.NoError(t, err)
	applied.Object["spec"] = map[string]any{"size": int64(5)}
	_, err = d.Apply(ctx, "two", applied, metav1.ApplyOptions{FieldManager: "b"})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	_, err = d.Create(ctx, object(r, "UPPER"), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	table := w.do(w.http, "GET", "/apis/group1.example.org/v1/thing001s", "", "Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	require.Contains(t, string(table.body), `"two"`)
	items, err := d.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=two"})
	require.NoError(t, err)
	require.Len(t, items.Items, 1)
	require.Equal(t, r.Kind, items.Items[0].GetKind())
	require.NoError(t, d.Delete(ctx, "one", metav1.DeleteOptions{}))

	require.NoError(t, w.cfg.Kinds.Change(ctx, []*kind.Resource{r}, nil))
	_, err = d.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	for range events.ResultChan() { // until it is closed
	}
	require.Equal(t, before.header.Get("ETag"), w.do(w.http, "GET", "/openapi/v3", "").header.Get("ETag"))
	_, err = disc.ServerResourcesForGroupVersion(r.GroupVersion().String())
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// All versions of a kind are served. A deprecated version adds a warning.
func TestSeveralVersions(t *testing.T) {
	w := newWorld(t)
	w.namespace("work")
	stored := thing(2)
	old := own.Untyped{Kind: stored.GroupVersion().WithKind(stored.Kind), Plural: stored.Plural, Status: true}
	old.Kind.Version = "v1beta1"
	beta := old.Row()
	beta.StoredAs, beta.Deprecated = stored, "group2.example.org/v1beta1 Thing002 is deprecated; use v1"
	stored.Also = []*kind.Resource{beta}
	require.NoError(t, w.cfg.Kinds.Change(t.Context(), nil, []*kind.Resource{stored, beta}))

	path := func(version, name string) string {
		return "/apis/group2.example.org/" + version + "/namespaces/work/thing002s" + name
	}
	body, _ := json.Marshal(object(beta, "x"))
	made := w.do(w.http, "POST", path("v1beta1", ""), string(body))
	require.Equal(t, http.StatusCreated, made.code, "%s", made.body)
	require.Contains(t, made.header.Get("Warning"), "deprecated")
	require.Contains(t, string(made.body), `"apiVersion":"group2.example.org/v1beta1"`)
	got := w.do(w.http, "GET", path("v1", "/x"), "")
	require.Contains(t, string(got.body), `"apiVersion":"group2.example.org/v1"`)
	require.Empty(t, got.header.Get("Warning"))
	require.Contains(t, string(w.do(w.http, "GET", path("v1beta1", ""), "").body),
		`"apiVersion":"group2.example.org/v1beta1"`)
	patched := w.do(w.http, "PATCH", path("v1beta1", "/x"), `{"spec":{"size":7}}`, "Content-Type",
		string(types.MergePatchType))
	require.Equal(t, http.StatusOK, patched.code, "%s", patched.body)
	require.Contains(t, string(w.do(w.http, "GET", path("v1", "/x"), "").body), `"size":7`)
	groups := string(w.do(w.http, "GET", "/apis/group2.example.org", "").body)
	require.Contains(t, groups, `"preferredVersion":{"groupVersion":"group2.example.org/v1"`)
	require.Contains(t, groups, "v1beta1")
}

// TestKindsChangeUnderLoad adds, uses, replaces and removes 500 kinds over HTTP, while other clients create and list
// objects of a built-in kind.
func TestKindsChangeUnderLoad(t *testing.T) {
	count := 500
	if raceDetector || testing.Short() {
		count = 25
	}
	w := newWorld(t)
	w.namespace("work")
	ctx := t.Context()
	few := w.changeAllocations()
	var load sync.WaitGroup
	var ended atomic.Bool
	var slowest atomic.Int64
	var calls atomic.Int64
	bystander := w.clientset(w.as("bystander", "system:masters"))
	bystand := func() {
		for !ended.Load() {
			began := time.Now()
			_, err := bystander.CoreV1().ConfigMaps("work").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Errorf("a bystander's list: %v", err)
				return
			}
			calls.Add(1)
			slowest.Store(max(slowest.Load(), int64(time.Since(began))))
		}
	}
	load.Go(bystand)
	d := w.dynamic(w.http)
	rows := make([]*kind.Resource, count)
	var adding time.Duration
	for i := range rows {
		rows[i] = thing(i)
		began := time.Now()
		require.NoError(t, w.cfg.Kinds.Change(ctx, nil, []*kind.Resource{rows[i]}))
		adding += time.Since(began)
		_, err := d.Resource(rows[i].GVR()).Namespace("work").Create(ctx, object(rows[i], "x"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	ended.Store(true)
	load.Wait()
	// A change copies references to the other kinds, but builds nothing anew for them. The race detector empties
	// pools at random.
	many := w.changeAllocations()
	t.Logf("a change allocates %d objects, %d with %d more kinds", few, many, count)
	require.Less(t, many, few+few/2+uint64(count)/2)
	ended.Store(false)
	load.Go(bystand)
	list := string(w.do(w.http, "GET", "/apis/group3.example.org/v1", "").body)
	require.Equal(t, count/7+min(1, max(0, count%7-3)), strings.Count(list, `"singularName":"thing`))
	for i, r := range rows {
		again := thing(i)
		again.Storage, again.Categories = r.Storage, []string{"all"}
		require.NoError(t, w.cfg.Kinds.Change(ctx, []*kind.Resource{r}, []*kind.Resource{again}))
		rows[i] = again
	}
	for _, r := range slices.Backward(rows) {
		got, err := d.Resource(r.GVR()).Namespace("work").Get(ctx, "x", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, r.Kind, got.GetKind())
		require.NoError(t, w.cfg.Kinds.Change(ctx, []*kind.Resource{r}, nil))
		_, err = d.Resource(r.GVR()).Namespace("work").Get(ctx, "x", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err))
	}
	ended.Store(true)
	load.Wait()
	t.Logf("%d kinds added, %s each; a bystander's slowest of %d lists took %s", count, adding/time.Duration(count),
		calls.Load(), time.Duration(slowest.Load()))
}

// changeAllocations returns how many objects adding and removing a kind allocates. The caller stops all other load.
// The minimum of several changes excludes the background work of the process.
func (w *world) changeAllocations() uint64 {
	least := uint64(math.MaxUint64)
	for i := range 20 {
		row := thing(1000 + i)
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		require.NoError(w.t, w.cfg.Kinds.Change(w.t.Context(), nil, []*kind.Resource{row}))
		require.NoError(w.t, w.cfg.Kinds.Change(w.t.Context(), []*kind.Resource{row}, nil))
		goruntime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}

// during is a subscriber that calls a function in the middle of each change.
type during func(step string)

func (d during) Prepare(context.Context, *kind.Table) error { d("prepare"); return nil }
func (d during) Settle(*kind.Table)                         { d("settle") }

// A change of kinds takes as long as its slowest subscriber. Requests do not wait for it.
func TestRequestsGoOnDuringAChangeOfKinds(t *testing.T) {
	w := newWorld(t)
	w.namespace("work")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	there, another := thing(1), thing(2)
	require.NoError(t, w.cfg.Kinds.Change(ctx, nil, []*kind.Resource{there}))
	things := w.dynamic(w.http).Resource(there.GVR()).Namespace("work")
	maps := w.clientset(w.as("bystander", "system:masters")).CoreV1().ConfigMaps("work")
	events, err := maps.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer events.Stop()
	var steps []string
	var each during = func(step string) {
		steps = append(steps, step)
		name := fmt.Sprint("during-", len(steps))
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err, step)
		require.Equal(t, name, (<-events.ResultChan()).Object.(*corev1.ConfigMap).Name)
		list, err := maps.List(ctx, metav1.ListOptions{})
		require.NoError(t, err, step)
		require.Len(t, list.Items, len(steps))
		_, err = things.Create(ctx, object(there, name), metav1.CreateOptions{})
		require.NoError(t, err, step)
		_, err = things.List(ctx, metav1.ListOptions{})
		require.NoError(t, err, step)
		for _, path := range []string{"/apis", "/apis/group1.example.org/v1", "/openapi/v3", "/openapi/v2"} {
			require.Equal(t, http.StatusOK, w.do(w.http, "GET", path, "").code, path)
		}
	}
	_, unsubscribe := w.cfg.Kinds.Subscribe(&each)
	defer unsubscribe()
	require.NoError(t, w.cfg.Kinds.Change(ctx, nil, []*kind.Resource{another}))
	require.NoError(t, w.cfg.Kinds.Change(ctx, []*kind.Resource{another}, nil))
	require.Equal(t, []string{"prepare", "settle", "prepare", "settle"}, steps)
}

// Widget is a kind as a package under apis would define one.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              WidgetSpec   `json:"spec,omitempty"`
	Status            WidgetStatus `json:"status,omitempty"`
}

type WidgetSpec struct {
	Size int32 `json:"size,omitempty"`
}

type WidgetStatus struct {
	Phase string `json:"phase,omitempty"`
}

type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Widget `json:"items"`
}

func (w *Widget) DeepCopyObject() runtime.Object {
	c := *w
	c.ObjectMeta = *w.ObjectMeta.DeepCopy()
	return &c
}

func (l *WidgetList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = slices.Clone(l.Items)
	return &c
}

const widgetSource = `package v1

// WidgetSpec is the desired state.
type WidgetSpec struct {
	// Size is the size in metres.
	Size int32
}
`

// A Go type and a row are sufficient to serve a kind.
func TestOneRowIsAKind(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "widgets.example.org", Version: "v1", Kind: "Widget"}
	row := own.Row(own.Definition[*Widget]{
		Kind: gvk, Plural: "widgets", ShortNames: []string{"wd"}, Categories: []string{"all"}, Source: widgetSource,
		New: func() *Widget { return &Widget{} }, NewList: func() client.ObjectList { return &WidgetList{} },
		Default: func(w *Widget) {
			if w.Spec.Size == 0 {
				w.Spec.Size = 1
			}
		},
		Validate: func(w *Widget) field.ErrorList {
			if w.Spec.Size < 0 {
				return field.ErrorList{field.Invalid(field.NewPath("spec", "size"), w.Spec.Size, "must not be negative")}
			}
			return nil
		},
		Columns: []own.Column[*Widget]{{Name: "Size", Type: "integer", Cell: func(w *Widget) any { return w.Spec.Size }}},
		Fields: []own.Field[*Widget]{{
			Name: "spec.size", Indexed: true, Value: func(w *Widget) string { return fmt.Sprint(w.Spec.Size) },
		}},
	}, func(w *Widget) *WidgetStatus { return &w.Status })
	row.Subresources = []kind.Subresource{{
		Name: "scale", GroupVersionKind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"},
		Verbs: []string{"get", "patch", "update"},
		New:   func() runtime.Object { return &autoscalingv1.Scale{} },
		Scale: &kind.Scale{
			Get: func(o client.Object) (*int32, int32, *metav1.LabelSelector) {
				return &o.(*Widget).Spec.Size, 0, &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			},
			Set: func(o client.Object, n int32) { o.(*Widget).Spec.Size = n },
		},
	}, {
		Name: "polish", GroupVersionKind: gvk, Verbs: []string{"create"}, New: func() runtime.Object { return &Widget{} },
		Create: func(_ context.Context, on kind.Parent, _ runtime.Object, _ metav1.CreateOptions) (runtime.Object, error) {
			_, err := on.Change(func(o client.Object) (client.Object, error) {
				o.(*Widget).Status.Phase = "Polished"
				return o, nil
			})
			return nil, err
		},
	}}
	row.Permanent = func(name string) error {
		if name == "eternal" {
			return errors.New("it stays")
		}
		return nil
	}
	w := newWorld(t)
	w.namespace("work")
	require.NoError(t, w.cfg.Kinds.Change(t.Context(), nil, []*kind.Resource{row}))

	const path = "/apis/widgets.example.org/v1/namespaces/work/widgets"
	for _, body := range []string{`{"metadata":{"name":"eternal"}}`, `{"metadata":{"name":"big"},"spec":{"size":7}}`} {
		body = `{"apiVersion":"widgets.example.org/v1","kind":"Widget",` + body[1:]
		require.Equal(t, http.StatusCreated, w.do(w.http, "POST", path, body).code)
	}
	bad := w.do(w.http, "POST", path,
		`{"apiVersion":"widgets.example.org/v1","kind":"Widget","metadata":{"name":"bad"},"spec":{"size":-1}}`).status(t)
	require.Contains(t, bad.Message, "spec.size: Invalid value: -1")
	require.Contains(t, string(w.do(w.http, "GET", path+"?fieldSelector=spec.size%3D7", "").body), `"name":"big"`)
	// List through the index.
	entries, _ := w.cfg.Cache.List(row, cache.Query{Fields: fields.OneTermEqualSelector("spec.size", "1")})
	require.Len(t, entries, 1)
	rows := string(w.do(w.http, "GET", path, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body)
	require.Contains(t, rows, `"cells":["big",7]`)
	require.Contains(t, string(w.do(w.http, "GET", "/openapi/v3/apis/widgets.example.org/v1", "").body),
		"Size is the size in metres.")
	require.Contains(t, string(w.do(w.http, "GET", "/apis/widgets.example.org/v1", "").body), `"widgets/scale"`)
	scaled := w.do(w.http, "PATCH", path+"/big/scale", `{"spec":{"replicas":9}}`, "Content-Type",
		string(types.MergePatchType))
	require.Contains(t, string(scaled.body), `"replicas":9`)
	require.Equal(t, http.StatusCreated,
		w.do(w.http, "POST", path+"/big/polish", `{"apiVersion":"widgets.example.org/v1","kind":"Widget"}`).code)
	require.Contains(t, string(w.do(w.http, "GET", path+"/big", "").body), `"phase":"Polished"`)
	require.Contains(t, w.do(w.http, "DELETE", path+"/eternal", "").status(t).Message, "it stays")

	var typed Widget
	c := local.New(w.cfg.Registry, w.cfg.Cache, w.cfg.Kinds).For(&user.DefaultInfo{
		Name: "admin", Groups: []string{user.SystemPrivilegedGroup},
	})
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "work", Name: "big"}, &typed))
	require.EqualValues(t, 9, typed.Spec.Size)
}

package kontrol

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/testcluster"
	"github.com/coracle-dev/coracle/test/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type target struct {
	name string
	ctrl.WithWatch
	cluster *testcluster.Cluster
	wire    *wire.Wire
}

func newTarget(t testing.TB, name string) *target {
	c := testcluster.New(t, testcluster.Config{})
	u, err := url.Parse(c.REST().Host)
	require.NoError(t, err)
	return &target{name, c.Client(), c, wire.New(t, u.Host)}
}

type hub struct {
	t testing.TB
	ctrl.WithWatch
	cluster *testcluster.Cluster
}

func newHub(t testing.TB) *hub {
	c := testcluster.New(t, testcluster.Config{Parts: testcluster.Reconcilers})
	return &hub{t, c.Client(), c}
}

// add registers targets as Clusters of the hub with their kubeconfigs.
func (h *hub) add(all ...*target) {
	h.t.Helper()
	for _, g := range all {
		cfg, err := clientcmd.LoadFromFile(g.cluster.Kubeconfig())
		require.NoError(h.t, err)
		require.NoError(h.t, clientcmdapi.FlattenConfig(cfg))
		for _, c := range cfg.Clusters {
			c.Server = "https://" + g.wire.Address()
		}
		data, err := clientcmd.Write(*cfg)
		require.NoError(h.t, err)
		h.create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: g.name}, Data: map[string][]byte{"kubeconfig": data},
		},
			&kontrol.Cluster{
				ObjectMeta: metav1.ObjectMeta{Name: g.name},
				Spec:       kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: g.name}},
			})
	}
}

func (h *hub) create(all ...ctrl.Object) {
	h.t.Helper()
	for _, o := range all {
		require.NoError(h.t, h.Create(h.t.Context(), o))
	}
}

// parallel calls f for 0 to n-1, 16 calls at a time.
func parallel(n int, f func(int) error) error {
	var wg sync.WaitGroup
	next, failed := make(chan int), make(chan error, n)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					failed <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	close(failed)
	return <-failed
}

func template(name, value string) runtime.RawExtension {
	return runtime.RawExtension{
		Raw: fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"value":%q}}`, name,
			value),
	}
}

func resource(name, cluster, object, value string) *kontrol.Resource {
	return &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kontrol.ResourceSpec{ClusterName: cluster, Template: template(object, value)},
	}
}

// until watches the hub's Resources until ok has returned true for each wanted name. It calls ok at each change of
// a wanted Resource that has not passed yet.
func (h *hub) until(what string, wanted []string, ok func(*kontrol.Resource) bool) {
	h.t.Helper()
	left := map[string]bool{}
	for _, n := range wanted {
		left[n] = true
	}
	for len(left) > 0 {
		var list kontrol.ResourceList
		require.NoError(h.t, h.List(h.t.Context(), &list))
		for i := range list.Items {
			if r := &list.Items[i]; left[r.Name] && ok(r) {
				delete(left, r.Name)
			}
		}
		if len(left) == 0 {
			return
		}
		w, err := h.Watch(h.t.Context(), &kontrol.ResourceList{},
			&ctrl.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
		require.NoError(h.t, err)
		for e := range w.ResultChan() {
			if r, is := e.Object.(*kontrol.Resource); is && left[r.Name] && ok(r) {
				if delete(left, r.Name); len(left) == 0 {
					break
				}
			}
		}
		end(w)
		if h.t.Context().Err() != nil {
			h.t.Fatalf("%d are not %s", len(left), what)
		}
	}
}

// end stops a watch and drains it, since its sender may be blocked.
func end(w watch.Interface) {
	w.Stop()
	for range w.ResultChan() {
	}
}

func state(s kontrol.State) func(*kontrol.Resource) bool {
	return func(r *kontrol.Resource) bool {
		return r.Status.State == s && r.Status.ObservedGeneration == r.Generation
	}
}

// values returns the value in each of a target's config maps, with the revision.
func (g *target) values(t testing.TB) map[string]string {
	t.Helper()
	var list corev1.ConfigMapList
	require.NoError(t, g.List(t.Context(), &list, ctrl.InNamespace("default"), ctrl.HasLabels{kontrol.LabelID}))
	all := map[string]string{}
	for i := range list.Items {
		m := &list.Items[i]
		all[m.Name] = m.Data["value"] + "@" + m.Annotations[kontrol.AnnotationRevision]
	}
	return all
}

// becomes waits until values returns want. It watches the target, because the Resource does not change when Kontrol
// repairs its object at once.
func (g *target) becomes(t testing.TB, want map[string]string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := g.Watch(ctx, &corev1.ConfigMapList{}, ctrl.InNamespace("default"))
	require.NoError(t, err)
	defer end(w)
	wrong := maps.Clone(want)
	for e := range w.ResultChan() {
		m, ok := e.Object.(*corev1.ConfigMap)
		if !ok || want[m.Name] == "" {
			continue
		}
		if e.Type != watch.Deleted && m.Data["value"]+"@"+m.Annotations[kontrol.AnnotationRevision] == want[m.Name] {
			delete(wrong, m.Name)
		} else {
			wrong[m.Name] = want[m.Name]
		}
		if len(wrong) == 0 {
			return
		}
	}
	t.Fatal("the watch ended")
}

// halfway waits until a target has n config maps with the value.
func (g *target) halfway(t testing.TB, n int, value string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := g.Watch(ctx, &corev1.ConfigMapList{}, ctrl.InNamespace("default"))
	require.NoError(t, err)
	defer end(w)
	seen := map[string]bool{}
	for e := range w.ResultChan() {
		if m, ok := e.Object.(*corev1.ConfigMap); ok && m.Data["value"] == value {
			if seen[m.Name] = true; len(seen) == n {
				return
			}
		}
	}
	t.Fatal("the watch ended")
}

// TestFleet runs many clusters with one hub. It cuts off one cluster while Kontrol applies to it, and silences one
// while the others finish: both get everything once they are back, and the other clusters are unaffected. Then it
// edits all Resources and rolls back part of them meanwhile. CORACLE_TEST_FLEET=1 uses 10 clusters with 1,000
// Resources and takes minutes.
func TestFleet(t *testing.T) {
	clusters, each := 4, 12
	if os.Getenv("CORACLE_TEST_FLEET") != "" {
		clusters, each = 10, 100
	}
	h := newHub(t)
	fleet := make([]*target, clusters)
	var start sync.WaitGroup
	for i := range clusters {
		start.Go(func() { fleet[i] = newTarget(t, fmt.Sprintf("c%d", i)) })
	}
	start.Wait()
	h.add(fleet...)
	cut, silent := fleet[1], fleet[2]
	silent.wire.Silence()

	name := func(cluster, i int) string { return fmt.Sprintf("r%d-%03d", cluster, i) }
	of := func(keep func(*target) bool) (names []string) {
		for c, g := range fleet {
			for i := range each {
				if keep(g) {
					names = append(names, name(c, i))
				}
			}
		}
		return names
	}
	made := make(chan error, 1)
	go func() {
		made <- parallel(clusters*each, func(n int) error {
			c := n % clusters
			return h.Create(t.Context(), resource(name(c, n/clusters), fleet[c].name, fmt.Sprintf("m%03d", n/clusters), "one"))
		})
	}()
	cut.halfway(t, each/3, "one")
	cut.wire.Cut()
	require.NoError(t, <-made)
	h.until("in sync", of(func(g *target) bool { return g != cut && g != silent }), state(kontrol.StateSynced))
	h.until("unreachable", of(func(g *target) bool { return g == cut || g == silent }), func(r *kontrol.Resource) bool {
		return r.Status.State == kontrol.StateUnreachable &&
			strings.Contains(r.Status.Message, "cluster "+r.Spec.ClusterName+": ")
	})
	require.Empty(t, silent.values(t))
	cut.wire.Mend()
	silent.wire.Mend()
	all := of(func(*target) bool { return true })
	h.until("in sync", all, state(kontrol.StateSynced))
	have := func(value func(i int) string) {
		t.Helper()
		want := map[string]string{}
		for i := range each {
			want[fmt.Sprintf("m%03d", i)] = value(i)
		}
		for _, g := range fleet {
			require.Equal(t, want, g.values(t), g.name)
		}
	}
	have(func(int) string { return "one@1" })

	// Edit all Resources, and roll back the first half while Kontrol applies the others.
	patch := func(n int, text string) error {
		r := &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: all[n]}}
		return h.Patch(t.Context(), r, ctrl.RawPatch(types.MergePatchType, []byte(text)))
	}
	edited := make(chan error, 1)
	go func() {
		edited <- parallel(len(all), func(n int) error { return patch(n, `{"spec":{"template":{"data":{"value":"two"}}}}`) })
	}()
	fleet[0].halfway(t, each/2, "two")
	rolledBack := func(i int) bool { return i < each/2 }
	require.NoError(t, <-edited)
	require.NoError(t, parallel(len(all), func(n int) error {
		if !rolledBack(n % each) {
			return nil
		}
		return patch(n, `{"spec":{"revision":1,"template":{"data":{"value":"one"}}}}`)
	}))
	h.until("in sync", all, state(kontrol.StateSynced))
	have(func(i int) string {
		if rolledBack(i) {
			return "one@1"
		}
		return "two@2"
	})
	var r kontrol.Resource
	require.NoError(t, h.Get(t.Context(), ctrl.ObjectKey{Name: all[0]}, &r))
	require.Len(t, r.Status.History, 2)
}

// TestTwoKontrols checks two hubs that want the same object: the first keeps it and the second reports the
// conflict. When the first lets go, the second gets it.
func TestTwoKontrols(t *testing.T) {
	one, two, g := newHub(t), newHub(t), newTarget(t, "shared")
	one.add(g)
	two.add(g)
	one.create(resource("a", "shared", "m", "one"))
	one.until("in sync", []string{"a"}, state(kontrol.StateSynced))
	two.create(resource("b", "shared", "m", "two"))
	two.until("in conflict", []string{"b"}, func(r *kontrol.Resource) bool {
		return r.Status.State == kontrol.StateConflict &&
			strings.Contains(r.Status.Message, "belongs to the Resource with the id")
	})
	require.Equal(t, map[string]string{"m": "one@1"}, g.values(t))
	require.NoError(t, one.Patch(t.Context(), &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"data":{"value":"three"}}}}`))))
	one.until("in sync", []string{"a"}, state(kontrol.StateSynced))
	require.Equal(t, map[string]string{"m": "three@2"}, g.values(t))

	// Deleting the first hub's Resource deletes the object; the second hub creates it again.
	require.NoError(t, one.Delete(t.Context(), &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	two.until("in sync", []string{"b"}, state(kontrol.StateSynced))
	require.Equal(t, map[string]string{"m": "two@1"}, g.values(t))
}

package robustness

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/test/host"
)

// counting counts the lists of ConfigMaps: requests for the collection without watch, and watches with initial events.
type counting struct {
	http.RoundTripper
	lists atomic.Int32
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	if r.Method == http.MethodGet && (q.Get("watch") == "" || q.Get("sendInitialEvents") == "true") {
		c.lists.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// An informer of client-go survives kills of the server without a new list. It misses no event and gets none twice.
func TestInformersGoOnWithoutAList(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	count := &counting{}
	watching := rest.CopyConfig(h.REST())
	watching.Wrap(func(rt http.RoundTripper) http.RoundTripper { count.RoundTripper = rt; return count })
	watcher, err := kubernetes.NewForConfig(watching)
	require.NoError(t, err)

	var mu sync.Mutex
	seen := map[string][]string{} // by name, the events in order
	note := func(event string, o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o, event = d.Obj, "lost"
		}
		m := o.(*corev1.ConfigMap)
		mu.Lock()
		defer mu.Unlock()
		seen[m.Name] = append(seen[m.Name], event+m.Data["v"])
	}
	factory := informers.NewSharedInformerFactoryWithOptions(watcher, 0, informers.WithNamespace("watched"))
	_, err = factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note("add", o) },
		UpdateFunc: func(_, o any) { note("update", o) },
		DeleteFunc: func(o any) { note("delete", o) },
	})
	require.NoError(t, err)
	api := connect(t, h)
	_, err = api.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer stop()
	factory.WaitForCacheSync(ctx.Done())
	lists := count.lists.Load()
	require.Positive(t, lists)

	maps := api.CoreV1().ConfigMaps("watched")
	want := map[string][]string{}
	for round := range 3 {
		for i := range 20 {
			m := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%d-%d", round, i)}, Data: map[string]string{"v": "1"},
			}
			_, err := maps.Create(t.Context(), m, metav1.CreateOptions{})
			require.NoError(t, err)
			m.Data["v"] = "2"
			_, err = maps.Update(t.Context(), m, metav1.UpdateOptions{})
			require.NoError(t, err)
			want[m.Name] = []string{"add1", "update2"}
			if i%2 == 0 {
				require.NoError(t, maps.Delete(t.Context(), m.Name, metav1.DeleteOptions{}))
				want[m.Name] = append(want[m.Name], "delete2")
			}
		}
		h.Kill() // the informer may have seen all, some or none of it
		h.Run("start")
		api = connect(t, h)
		maps = api.CoreV1().ConfigMaps("watched")
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		delete(seen, "kube-root-ca.crt")
		total := 0
		for _, events := range seen {
			total += len(events)
		}
		return total >= 3*(20*2+10)
	}, 2*time.Minute, 10*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, want, seen)
	require.Equal(t, lists, count.lists.Load(), "lists after the kills")
}

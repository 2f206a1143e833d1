package endpointslice

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/engine"
)

func zoned(name, zone, cpu string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// cached is an in-memory client without a cache.
type cached struct{ client.WithWatch }

func (cached) Cache() ctrlcache.Cache { return nil }

// Endpoints of a service with topology-mode Auto get zone hints in proportion to the zones' CPU. The hints change
// with the nodes. Other services do not read nodes.
func TestHintsFollowNodes(t *testing.T) {
	labels := map[string]string{"app": "web"}
	a, b := zoned("na", "a", "4"), zoned("nb", "b", "4")
	web := func(name string, annotations map[string]string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Annotations: annotations},
			Spec: corev1.ServiceSpec{
				ClusterIP:  "10.0.0.1",
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Selector:   labels,
				Ports:      []corev1.ServicePort{{Port: 80}},
			},
		}
	}
	objects := []client.Object{
		a, b, web("auto", map[string]string{corev1.AnnotationTopologyMode: "Auto"}), web("plain", nil),
	}
	for i := range 8 {
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default",
				Name:      fmt.Sprint("p", i),
				UID:       types.UID(fmt.Sprint(i)),
				Labels:    labels,
			},
			Spec: corev1.PodSpec{NodeName: []string{"na", "nb"}[i%2]},
			Status: corev1.PodStatus{
				PodIP: fmt.Sprintf("10.1.0.%d", i), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.1.0.%d", i)}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	lists := 0
	c := fake.NewClientBuilder().
		WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
				if _, nodes := list.(*corev1.NodeList); nodes {
					lists++
				}
				return c.List(ctx, list, o...)
			},
		}).Build()
	r := reconcilerOf(engine.Env{
		Client: c,
		Cache:  c,
		Events: events.New(cached{c}, "test", "", slog.New(slog.DiscardHandler)),
	})
	zones := func(service string) map[string]int {
		_, err := r.reconcile(t.Context(), engine.RequestFor("default", service))
		require.NoError(t, err)
		var list discoveryv1.EndpointSliceList
		require.NoError(t, c.List(t.Context(), &list, client.MatchingLabels{discoveryv1.LabelServiceName: service}))
		out := map[string]int{}
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				if e.Hints != nil {
					for _, z := range e.Hints.ForZones {
						out[z.Name]++
					}
				}
			}
		}
		return out
	}
	require.Empty(t, zones("plain"))
	require.Empty(t, r.topology.node(nil, a))
	require.Zero(t, lists)

	require.Equal(t, map[string]int{"a": 4, "b": 4}, zones("auto"))
	zones("auto")
	require.Equal(t, 1, lists)

	// A heartbeat changes nothing. A change of a zone's CPU does.
	require.Empty(t, r.topology.node(a, a.DeepCopy()))
	large := a.DeepCopy()
	large.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("12")
	require.NoError(t, c.Status().Update(t.Context(), large))
	require.Equal(t, []engine.Request{engine.RequestFor("default", "auto")}, r.topology.node(a, large))
	require.Equal(t, map[string]int{"a": 6, "b": 2}, zones("auto"))

	// With a single zone there are no hints.
	lost := b.DeepCopy()
	lost.Status.Conditions[0].Status = corev1.ConditionUnknown
	require.NoError(t, c.Status().Update(t.Context(), lost))
	r.topology.node(b, lost)
	require.Empty(t, zones("auto"))

	var svc corev1.Service
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "auto"}, &svc))
	require.NoError(t, c.Delete(t.Context(), &svc))
	_, err := r.reconcile(t.Context(), engine.RequestFor("default", "auto"))
	require.NoError(t, err)
	require.Empty(t, r.topology.node(nil, b))
}

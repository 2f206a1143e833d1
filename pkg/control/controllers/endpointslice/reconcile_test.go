package endpointslice

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// counting counts the calls of the library.
type counting struct {
	upstream
	calls int
}

func (c *counting) Reconcile(l klog.Logger, svc *corev1.Service, pods []*corev1.Pod,
	slices []*discoveryv1.EndpointSlice, at time.Time) error {
	c.calls++
	return c.upstream.Reconcile(l, svc, pods, slices, at)
}

// The reconciler's own writes trigger it but cost nothing. It repairs changes by other writers.
func TestOwnWritesCostNothing(t *testing.T) {
	labels := map[string]string{"app": "web"}
	objects := []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "s"},
			Spec: corev1.ServiceSpec{
				ClusterIP:  "10.0.0.1",
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Selector:   labels,
				Ports:      []corev1.ServicePort{{Port: 80}},
			},
		},
	}
	for i := range 250 {
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default",
				Name:      fmt.Sprint("p", i),
				UID:       types.UID(fmt.Sprint(i)),
				Labels:    labels,
			},
			Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{
				PodIP: fmt.Sprintf("10.1.0.%d", i), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.1.0.%d", i)}},
			},
		})
	}
	// The fake client generates names for the slices.
	c := fake.NewClientBuilder().
		WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).Build()
	r := reconcilerOf(engine.Env{Client: c, Cache: c})
	count := &counting{upstream: r.upstream}
	r.upstream = count
	request := engine.RequestFor("default", "web")
	run := func() []discoveryv1.EndpointSlice {
		_, err := r.reconcile(t.Context(), request)
		require.NoError(t, err)
		var list discoveryv1.EndpointSliceList
		require.NoError(t, c.List(t.Context(), &list))
		return list.Items
	}
	endpoints := func(list []discoveryv1.EndpointSlice) (n int) {
		for i := range list {
			n += len(list[i].Endpoints)
		}
		return n
	}
	made := run()
	require.Len(t, made, 3)
	require.Equal(t, 250, endpoints(made))
	for range made {
		require.Equal(t, made, run())
	}
	require.Equal(t, 1, count.calls, "its own three writes")

	spoiled := made[0].DeepCopy()
	spoiled.Endpoints = spoiled.Endpoints[1:]
	require.NoError(t, c.Update(t.Context(), spoiled))
	require.Equal(t, 250, endpoints(run()))
	run()
	require.Equal(t, 2, count.calls)

	require.NoError(t, c.Delete(t.Context(), &made[1]))
	require.Equal(t, 250, endpoints(run()))
	require.NoError(t, c.Delete(t.Context(), objects[len(objects)-1]))
	require.Equal(t, 249, endpoints(run()))
	require.Equal(t, 4, count.calls)
}

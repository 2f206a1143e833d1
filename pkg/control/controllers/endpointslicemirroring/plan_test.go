package endpointslicemirroring

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "s",
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "x": "y"},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "10.0.0.2"}, {IP: "10.0.0.1", Hostname: "h"}, {IP: "fd00::1"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.3"}},
			Ports:             []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
	}
	a := Plan(e, svc, nil)
	require.Len(t, a.Create, 2)
	v4 := a.Create[0]
	require.Equal(t, discoveryv1.AddressTypeIPv4, v4.AddressType)
	require.Equal(t, map[string]string{"a": "b", discoveryv1.LabelServiceName: "s", discoveryv1.LabelManagedBy: manager},
		v4.Labels)
	require.Equal(t, map[string]string{"x": "y"}, v4.Annotations)
	require.Equal(t, "10.0.0.1", v4.Endpoints[0].Addresses[0])
	require.Equal(t, "h", *v4.Endpoints[0].Hostname)
	require.True(t, *v4.Endpoints[1].Conditions.Ready)
	require.False(t, *v4.Endpoints[2].Conditions.Ready)
	require.Equal(t, Actions{Delete: []*discoveryv1.EndpointSlice{}}, Plan(e, svc, a.Create), "nothing is left to do")

	moved := e.DeepCopy()
	moved.Subsets[0].Addresses[0].IP = "10.0.0.9"
	again := Plan(moved, svc, a.Create)
	require.Len(t, again.Update, 1)
	require.Empty(t, again.Create)

	skip := e.DeepCopy()
	skip.Labels[discoveryv1.LabelSkipMirror] = "true"
	selecting := svc.DeepCopy()
	selecting.Spec.Selector = map[string]string{"a": "b"}
	for _, off := range []Actions{
		Plan(skip, svc, a.Create), Plan(e, selecting, a.Create), Plan(e, nil, a.Create), Plan(nil, svc, a.Create),
	} {
		require.Len(t, off.Delete, 2)
		require.Empty(t, off.Create)
	}
}

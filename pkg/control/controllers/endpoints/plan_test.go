package endpoints

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(ip string, ready bool, port int32) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p" + ip, UID: types.UID(ip)},
		Spec: corev1.PodSpec{
			NodeName: "n",
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: corev1.ProtocolTCP}}},
			},
		},
	}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func service(target intstr.IntOrString) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1",
			Ports:     []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: target, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func TestSubsets(t *testing.T) {
	ended := pod("10.0.0.9", true, 80)
	ended.Status.Phase = corev1.PodSucceeded
	going := pod("10.0.0.8", true, 80)
	going.DeletionTimestamp = &metav1.Time{}
	out, over := Subsets(service(intstr.FromString("http")), []*corev1.Pod{
		pod("10.0.0.3", true, 8080), pod("10.0.0.2", true, 8080), pod("10.0.0.4", false, 8080), pod("10.0.0.5", true, 9090),
		pod("", true, 80), ended, going,
	})
	require.False(t, over)
	require.Len(t, out, 2)
	require.EqualValues(t, 8080, out[0].Ports[0].Port)
	require.Equal(t, []string{"10.0.0.2", "10.0.0.3"}, []string{out[0].Addresses[0].IP, out[0].Addresses[1].IP})
	require.Equal(t, "10.0.0.4", out[0].NotReadyAddresses[0].IP)
	require.EqualValues(t, 9090, out[1].Ports[0].Port)

	all := service(intstr.FromInt32(80))
	all.Spec.PublishNotReadyAddresses = true
	out, _ = Subsets(all, []*corev1.Pod{pod("10.0.0.4", false, 1)})
	require.Len(t, out[0].Addresses, 1)

	headless := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}
	out, _ = Subsets(headless, []*corev1.Pod{pod("10.0.0.4", true, 1)})
	require.Empty(t, out[0].Ports)
	require.Len(t, out[0].Addresses, 1)

	var many []*corev1.Pod
	for i := range most + 5 {
		many = append(many, pod(fmt.Sprintf("10.0.%d.%d", i/250, i%250), true, 80))
	}
	out, over = Subsets(all, many)
	require.True(t, over)
	require.Len(t, out[0].Addresses, most)
}

func TestPlanIsQuietWhenRight(t *testing.T) {
	svc := service(intstr.FromInt32(80))
	svc.Labels = map[string]string{"a": "b"}
	pods := []*corev1.Pod{pod("10.0.0.4", true, 1)}
	made := Plan(svc, pods, nil)
	require.Equal(t, map[string]string{"a": "b", managedBy: manager}, made.Labels)
	require.Nil(t, Plan(svc, pods, made))
	require.Empty(t, Plan(svc, nil, made).Subsets)
}

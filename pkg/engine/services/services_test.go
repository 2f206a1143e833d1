package services

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSelects(t *testing.T) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}}
	require.True(t, Selects(svc, map[string]string{"a": "b", "c": "d"}))
	require.False(t, Selects(svc, map[string]string{"c": "d"}))
	svc.Spec.Type = corev1.ServiceTypeExternalName
	require.False(t, Selects(svc, map[string]string{"a": "b"}))
	require.False(t, Selects(&corev1.Service{}, map[string]string{"a": "b"}), "no selector selects nothing")
}

func TestMatters(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"nothing":   {func(*corev1.Pod) {}, false},
		"heartbeat": {func(p *corev1.Pod) { p.Status.Message = "x" }, false},
		"address":   {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} }, true},
		"ready": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, true},
		"labels": {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, true},
		"going":  {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, true},
		"ended":  {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
	} {
		t.Run(name, func(t *testing.T) {
			was, is := &corev1.Pod{}, &corev1.Pod{}
			c.change(is)
			require.Equal(t, c.want, matters(was, is))
		})
	}
}

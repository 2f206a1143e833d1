package podgc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlanEnded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var pods []*corev1.Pod
	for _, age := range []int{3, 9, 1, 5} {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(age) * time.Hour))}})
	}
	require.Empty(t, PlanEnded(pods, 4))
	require.Equal(t, []*corev1.Pod{pods[1], pods[3]}, PlanEnded(pods, 2))
	require.Equal(t, 30*time.Second, PlanNode(now.Add(-10*time.Second), now))
	require.Zero(t, PlanNode(now.Add(-time.Hour), now))
}

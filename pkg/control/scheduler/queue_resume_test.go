package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pods that were deleted, or that other schedulers bound, are skipped when their devices become ready.
func TestBindable(t *testing.T) {
	q := newQueue()
	pods := map[string]*pending{}
	for _, name := range []string{"gone", "bound", "waits", "last"} {
		p := &pending{
			info:     newPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}),
			reserved: newNodeInfo("n"),
		}
		pods[name] = p
		q.add(p)
		require.Same(t, p, q.pop())
		q.waiting[p] = struct{}{}
	}
	q.remove(pods["gone"])
	require.NotContains(t, q.waiting, pods["gone"])
	pods["bound"].reserved = nil
	for _, name := range []string{"gone", "bound", "last"} {
		q.goOn(pods[name])
	}
	require.Same(t, pods["last"], q.bindable())
	require.Nil(t, q.bindable())
	require.NotContains(t, q.pods, types.UID("bound"))
	require.Len(t, q.waiting, 1, "one still waits")
}

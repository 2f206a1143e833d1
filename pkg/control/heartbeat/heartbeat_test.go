package heartbeat

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRecord(t *testing.T) {
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }
	// The nodes' timestamps are far off. Only changes of them matter.
	lease := func(namespace string, renewed int) *coordinationv1.Lease {
		then := metav1.NewMicroTime(at(renewed).Add(-time.Hour))
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "n"}, Spec: coordinationv1.LeaseSpec{RenewTime: &then},
		}
	}
	node := func(reported int) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		if reported > 0 {
			n.Status.Conditions = []corev1.NodeCondition{
				{Type: corev1.NodeReady, LastHeartbeatTime: metav1.NewTime(at(reported).Add(time.Hour))},
			}
		}
		return n
	}
	var r Record
	last := func(want int, why string) { t.Helper(); require.Equal(t, at(want), r.Last("n", at(1000)), why) }

	r.Node(nil, node(0), at(1))
	last(1, "a new node")
	r.Node(nil, node(1), at(2))
	last(1, "it is listed again")
	r.Node(node(1), node(1), at(3))
	r.Node(node(1), node(0), at(3))
	last(1, "somebody else has written it")
	r.Node(node(1), node(2), at(4))
	last(4, "its status")
	r.Lease(nil, lease(corev1.NamespaceNodeLease, 1), at(5))
	last(5, "its lease")
	r.Lease(lease(corev1.NamespaceNodeLease, 1), lease(corev1.NamespaceNodeLease, 1), at(6))
	r.Lease(nil, lease("default", 1), at(6))
	r.Lease(lease(corev1.NamespaceNodeLease, 1), nil, at(6))
	last(5, "a lease that was not renewed, another's, and a deleted one")
	r.Lease(lease(corev1.NamespaceNodeLease, 1), lease(corev1.NamespaceNodeLease, 2), at(7))
	last(7, "its renewed lease")
	r.Node(node(2), nil, at(8))
	require.Equal(t, at(9), r.Last("n", at(9)), "a deleted node is forgotten")
	require.Equal(t, at(9), r.Last("n", at(10)), "a node that never was heard of has been then")
}

// TestSilenceWhileStopped: a process that was stopped, and so heard nothing, gives nodes time to be heard from. A node
// that is silent while the process runs is lost after its patience.
func TestSilenceWhileStopped(t *testing.T) {
	const patience = 40 * time.Second
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var r Record
	silent := func(at int, since, next int) {
		t.Helper()
		s, n := r.Silent("n", epoch.Add(time.Duration(at)*time.Second), patience)
		require.Equal(t, epoch.Add(time.Duration(since)*time.Second), s)
		require.Equal(t, time.Duration(next)*time.Second, n)
	}
	silent(0, 0, 30)
	silent(30, 0, 10)
	silent(35, 0, 5)
	silent(40, 0, 0) // lost
	silent(100, 0, 0)
	r.hear("n", epoch.Add(101*time.Second))
	silent(105, 101, 26)
	silent(200, 170, 10) // stopped from 110 to 200
	silent(205, 170, 5)
	r.hear("n", epoch.Add(206*time.Second))
	silent(220, 206, 16)
	silent(247, 217, 10) // stopped again
	silent(257, 217, 0)
}

package cli

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/command/commandtest"
)

// TestNodes checks that the heartbeat comes from the node's Lease, because the heartbeat time in its status can be
// minutes old.
func TestNodes(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	now := time.Now()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now.Add(-4 * time.Minute))},
		}, Capacity: corev1.ResourceList{"cpu": resource.MustParse("2")}},
	}
	cordoned := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "o"},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status:     corev1.NodeStatus{Conditions: n.Status.Conditions},
	}
	renewed := metav1.NewMicroTime(now.Add(-7 * time.Second))
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{tasks.LabelTask: "t"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}},
		}}},
	}
	c := &command.Cluster{
		Client: fake.NewClientBuilder().
			WithScheme(scheme).WithRESTMapper(command.Connector{}.Mapper()).WithObjects(n, l, p, cordoned).Build(),
	}
	out := commandtest.Output(t, func(out io.Writer) error { return Nodes(t.Context(), c, out) })
	require.Regexp(t, `(?m)^n +Online +- +250m/2 .* 1/0 +1 +([7-9]|\d\d)s$`, out)
	require.Regexp(t, `(?m)^o +Online,Cordoned +`, out)
}

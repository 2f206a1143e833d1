package abuse

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// node returns a client with the credentials of the node with that name.
func (c *cluster) node(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	config := c.REST()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"},
	}
	api, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return api
}

// A node's credential evicts a pod of another node, or marks it as disrupted.
func nodeMarksPods(t *testing.T, c *cluster) {
	c.pod(t, "victim", "sleep 3600")
	c.until(t, "victim", "running", running)
	err := c.node(t, "evil").CoreV1().Pods(tenantNamespace).EvictV1(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: "victim"},
	})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	t.Logf("told: %v", err)
	pod, err := c.tenant.CoreV1().Pods(tenantNamespace).Get(t.Context(), "victim", metav1.GetOptions{})
	require.NoError(t, err)
	for _, condition := range pod.Status.Conditions {
		require.NotEqual(t, corev1.DisruptionTarget, condition.Type)
	}
	require.Nil(t, pod.DeletionTimestamp)
}

// A node writes another machine's address into its status, to get that machine's traffic.
func nodeTakesAddress(t *testing.T, c *cluster) {
	_, err := c.node(t, "evil-address").CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "evil-address"},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "198.51.100.66"}},
		},
	}, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "neither joined with this address nor connects from it")
}

// A node claims the whole Internet, the service range, or another node's range as its pod CIDR.
func nodeTakesNetwork(t *testing.T, c *cluster) {
	before, err := c.Command(t.Context(), "ip", "-4", "route").Output()
	require.NoError(t, err)
	ready := corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.66"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}
	nodes := c.admin.CoreV1().Nodes()
	for name, cidr := range map[string]string{
		"evil-internet": "0.0.0.0/1",
		"evil-services": "10.43.0.0/24",
		"evil-neighbor": "10.42.0.0/24",
	} {
		api := c.node(t, name).CoreV1().Nodes()
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
			Status:     ready,
		}
		if _, err := api.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Logf("told: %v", err)
			// The API refuses it for a node, but an administrator may do the same by mistake: the agents must
			// refuse it too.
			_, err = nodes.Create(t.Context(), node, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		t.Cleanup(func() { _ = nodes.Delete(t.Context(), name, metav1.DeleteOptions{}) })
	}
	// Pods started now run after the agent has handled the nodes.
	c.pod(t, "behind", "echo hello")
	c.until(t, "behind", "ended", ended)
	after, err := c.Command(t.Context(), "ip", "-4", "route").Output()
	require.NoError(t, err)
	require.NotContains(t, string(after), "198.51.100.66", "before:\n%s", before)
}

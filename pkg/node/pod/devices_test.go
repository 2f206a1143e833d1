package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAdmitCountsDevices(t *testing.T) {
	const gadget = "example.com/gadget"
	node := nodeWith("110")
	node.Status.Allocatable[gadget] = resource.MustParse("2")
	require.Nil(t, Admit(wants(gadget, "1"), node, []*corev1.Pod{wants(gadget, "1")}))
	v := Admit(wants(gadget, "2"), node, []*corev1.Pod{wants(gadget, "1")})
	require.NotNil(t, v)
	require.Equal(t, "OutOfexample.com/gadget", v.Reason)
	require.Equal(t,
		"Pod was rejected: Node didn't have enough resource: example.com/gadget, requested: 2, used: 1, capacity: 2",
		v.Message)
}

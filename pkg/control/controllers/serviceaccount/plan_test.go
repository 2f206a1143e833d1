package serviceaccount

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	made := Plan(ns, nil)
	require.Equal(t, "n/default", made.Namespace+"/"+made.Name)
	require.Nil(t, Plan(ns, made))
	ns.Status.Phase = corev1.NamespaceTerminating
	require.Nil(t, Plan(ns, nil))
}

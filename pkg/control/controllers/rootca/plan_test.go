package rootca

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	made := Plan(ns, nil, "pem")
	require.Equal(t, map[string]string{"ca.crt": "pem"}, made.Data)
	require.Nil(t, Plan(ns, made, "pem"))
	require.Equal(t, "new", Plan(ns, made, "new").Data["ca.crt"])
	meddled := made.DeepCopy()
	meddled.Data["more"] = "x"
	require.Equal(t, made.Data, Plan(ns, meddled, "pem").Data)
	ns.Status.Phase = corev1.NamespaceTerminating
	require.Nil(t, Plan(ns, nil, "pem"))
}

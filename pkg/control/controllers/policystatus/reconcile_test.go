package policystatus

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEachGenerationIsCheckedOnce(t *testing.T) {
	warning := admissionregistrationv1.ExpressionWarning{
		FieldRef: "spec.validations[0].expression", Warning: "undefined field",
	}
	check := func(*admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
		return []admissionregistrationv1.ExpressionWarning{warning}
	}
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 2}}
	next := Plan(p, check)
	require.Equal(t, int64(2), next.Status.ObservedGeneration)
	require.Equal(t, []admissionregistrationv1.ExpressionWarning{warning}, next.Status.TypeChecking.ExpressionWarnings)
	require.Nil(t, p.Status.TypeChecking, "the cached object is immutable")
	require.Nil(t, Plan(next, check))
	next.Generation = 3
	require.NotNil(t, Plan(next, check))
	next.DeletionTimestamp = &metav1.Time{}
	require.Nil(t, Plan(next, check))
}

package registry

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Long lists are found in every kind that contains a pod's specification, and named.
func TestLongListsInSpecifications(t *testing.T) {
	h := build(t)
	spec := smallPod("p").Spec
	spec.Containers[0].Resources.Claims = make([]corev1.ResourceClaim, maxItems+1)
	service := &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: make([]string, maxItems+1)}}
	selector := map[string]string{}
	for i := range maxItems + 1 {
		selector[strconv.Itoa(i)] = ""
	}
	deployment, cron := &appsv1.Deployment{}, &batchv1.CronJob{}
	set := &appsv1.ReplicaSet{}
	set.Spec.Template.Labels = selector
	deployment.Spec.Template.Spec, cron.Spec.JobTemplate.Spec.Template.Spec = spec, spec
	for path, obj := range map[string]client.Object{
		"spec.containers[0].resources.claims":                           &corev1.Pod{Spec: spec},
		"spec.template.spec.containers[0].resources.claims":             deployment,
		"spec.jobTemplate.spec.template.spec.containers[0].resources.c": cron,
		"spec.externalIPs":              service,
		"spec.template.metadata.labels": set,
		"spec.nodeSelector":             &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: selector}},
	} {
		c := &call{Registry: h.Registry, Target: v1("Pod", "")}
		err := c.checkCost(obj, nil)
		require.ErrorContains(t, err, path)
		requireStatus(t, err, 422)
		require.NoError(t, c.checkCost(obj, obj), "an object that is already so may change otherwise")
	}
	few := &call{Registry: h.Registry, Target: v1("Pod", "")}
	require.NoError(t, few.checkCost(smallPod("p"), nil))
	require.Positive(t, few.items)
	require.NoError(t, few.checkCost(&corev1.Endpoints{ //nolint:staticcheck // still served
		Subsets: make([]corev1.EndpointSubset, maxItems+1)}, nil)) //nolint:staticcheck // still served
}

// The cost of expressions is counted wherever they are.
func TestCostOfExpressions(t *testing.T) {
	h := build(t)
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	c := &call{Registry: h.Registry, Target: v1("Pod", "")}
	c.Resource = h.kinds.Table().ByGVK(admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"))
	policy.Spec.Validations = make([]admissionv1.Validation, maxCompileMicros/expressionMicros)
	for i := range policy.Spec.Validations {
		policy.Spec.Validations[i].Expression = "true"
	}
	require.NoError(t, c.checkCost(policy, nil))
	policy.Spec.Variables = []admissionv1.Variable{{Expression: "1"}, {Expression: "2"}}
	requireStatus(t, c.checkCost(policy, nil), 413)
	require.NoError(t, c.checkCost(policy, policy))
	policy.Spec.Validations = []admissionv1.Validation{{Expression: strings.Repeat("!", 50_000)}}
	requireStatus(t, c.checkCost(policy, nil), 413)
}

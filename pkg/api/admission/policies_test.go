package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/registry"
)

// describe returns an OpenAPI document with one kind that has labels and a map named data.
func describe(gv schema.GroupVersion) ([]byte, error) {
	name := map[string]string{"v1": "ConfigMap"}[gv.String()]
	if name == "" {
		name = "Task"
	}
	return []byte(`{"openapi":"3.0.0","components":{"schemas":{"a":{"type":"object","properties":{
		"apiVersion":{"type":"string"},"kind":{"type":"string"},
		"metadata":{"type":"object","properties":{"labels":{"type":"object","additionalProperties":{"type":"string"}}},"x-kubernetes-preserve-unknown-fields":true},
		"data":{"type":"object","additionalProperties":{"type":"string"}},"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
		"x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-group-version-kind":[{"group":"` +
		gv.Group + `","version":"` + gv.Version + `","kind":"` + name + `"}]}}}}`), nil
}

func mutatingPolicy(h *env, name string, spec registration.MutatingAdmissionPolicySpec, param *registration.ParamRef) {
	group := registration.SchemeGroupVersion
	spec.ReinvocationPolicy = registration.IfNeededReinvocationPolicy
	put(h, at(group.WithKind("MutatingAdmissionPolicy"), "", ""), &registration.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	})
	put(h, at(group.WithKind("MutatingAdmissionPolicyBinding"), "", ""), &registration.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       registration.MutatingAdmissionPolicyBindingSpec{PolicyName: name, ParamRef: param},
	})
}

func applied(expression string) registration.Mutation {
	return registration.Mutation{
		PatchType:          registration.PatchTypeApplyConfiguration,
		ApplyConfiguration: &registration.ApplyConfiguration{Expression: expression},
	}
}

func TestMutatingPolicies(t *testing.T) {
	h := secured(t, Plugins{Schemas: describe})
	put(h, v1("ConfigMap", ""), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "team", Namespace: "work"}, Data: map[string]string{"name": "blue"},
	})
	match := &registration.MatchResources{
		ResourceRules: []registration.NamedRuleWithOperations{{RuleWithOperations: on("configmaps", "tasks")[0]}},
	}
	// The first policy by name sees the change of the second one, because it is reinvoked.
	mutatingPolicy(h, "a-sees-the-team", registration.MutatingAdmissionPolicySpec{MatchConstraints: match,
		Mutations: []registration.Mutation{{PatchType: registration.PatchTypeJSONPatch, JSONPatch: &registration.JSONPatch{
			Expression: `"team" in object.metadata.labels ? [JSONPatch{op: "add", path: "/metadata/labels/seen", value: object.metadata.labels.team}] : []`}}}}, nil)
	mutatingPolicy(h, "b-adds-the-team", registration.MutatingAdmissionPolicySpec{MatchConstraints: match,
		ParamKind:       &registration.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
		MatchConditions: []registration.MatchCondition{{Name: "labels", Expression: `"a" in object.metadata.labels`}},
		Variables:       []registration.Variable{{Name: "team", Expression: "params.data.name"}},
		Mutations: []registration.Mutation{
			applied(`Object{metadata: Object.metadata{labels: {"team": variables.team}}}`),
		}},
		&registration.ParamRef{Name: "team", Namespace: "work", ParameterNotFoundAction: new(registration.DenyAction)})

	want := map[string]string{"a": "b", "team": "blue", "seen": "blue"}
	made := func(target string, o runtime.Object) map[string]string {
		at := v1("ConfigMap", "")
		if target == "Task" {
			at = taskAt()
		}
		res, err := h.Create(h.ctx, at, o.DeepCopyObject(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		value, err := res.Value()
		require.NoError(t, err)
		return value.(metav1.Object).GetLabels()
	}
	// Upstream reads policies once a second.
	require.Eventually(t, func() bool {
		return len(made("ConfigMap", settings("one", nil))) == len(want)
	}, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, want, made("ConfigMap", settings("one", map[string]string{"k": "v"})))
	task := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "work", Labels: map[string]string{"a": "b"}},
		Spec:       tasks.TaskSpec{Image: "i"},
	}
	require.Equal(t, want, made("Task", task), "a kind of our own, which is not in upstream's scheme")
}

func TestMutatingPoliciesThatFail(t *testing.T) {
	h := secured(t, Plugins{Schemas: describe})
	match := &registration.MatchResources{
		ResourceRules: []registration.NamedRuleWithOperations{{RuleWithOperations: on("configmaps")[0]}},
	}
	mutatingPolicy(h, "wrong", registration.MutatingAdmissionPolicySpec{MatchConstraints: match,
		Mutations: []registration.Mutation{
			applied(`Object{metadata: Object.metadata{labels: {"n": string(1 / (size(object.metadata.name) - 3))}}}`),
		}}, nil)
	dry := func() error {
		_, err := h.Create(h.ctx, v1("ConfigMap", ""), settings("one", nil), metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll},
		})
		return err
	}
	var err error
	require.Eventually(t, func() bool { err = dry(); return err != nil }, 2*time.Minute, 10*time.Millisecond)
	requireStatus(t, err, 403, "policy 'wrong' with binding 'wrong' denied request", "division by zero")
}

func taskAt() registry.Target { return at(tasks.GroupVersion.WithKind("Task"), "work", "") }

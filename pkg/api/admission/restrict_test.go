package admission

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func (h *env) annotate(annotations map[string]string) {
	h.t.Helper()
	target := at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", "work")
	res, err := h.Get(h.ctx, target, metav1.GetOptions{})
	ns := answer[*corev1.Namespace](h.t, res, err).DeepCopy()
	ns.Annotations = annotations
	_, err = h.Update(h.ctx, target, ns, metav1.UpdateOptions{})
	require.NoError(h.t, err)
}

func configured(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "admission.yaml")
	require.NoError(t,
		os.WriteFile(path, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+text),
			0o600))
	return path
}

func TestPodTolerationRestriction(t *testing.T) {
	h := secured(t, Plugins{Enable: []string{"PodTolerationRestriction"}})
	h.annotate(map[string]string{
		"scheduler.alpha.kubernetes.io/defaultTolerations":   `[{"key":"team","operator":"Equal","value":"a","effect":"NoSchedule"}]`,
		"scheduler.alpha.kubernetes.io/tolerationsWhitelist": `[{"key":"team","operator":"Exists"},{"key":"node.kubernetes.io/not-ready","operator":"Exists"},{"key":"node.kubernetes.io/unreachable","operator":"Exists"},{"key":"node.kubernetes.io/memory-pressure","operator":"Exists"}]`,
	})
	require.Contains(t, put(h, v1("Pod", ""), smallPod("p")).Spec.Tolerations, corev1.Toleration{
		Key:      "team",
		Operator: corev1.TolerationOpEqual,
		Value:    "a",
		Effect:   corev1.TaintEffectNoSchedule,
	})
	q := smallPod("q")
	q.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	requireStatus(t, h.try(v1("Pod", ""), q), 500,
		"pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist")
}

func TestPodNodeSelector(t *testing.T) {
	h := secured(t, Plugins{Enable: []string{"PodNodeSelector"}, Config: configured(t,
		"- {name: PodNodeSelector, configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: zone=a}}}\n")})
	require.Equal(t, map[string]string{"zone": "a"}, put(h, v1("Pod", ""), smallPod("p")).Spec.NodeSelector)
	q := smallPod("q")
	q.Spec.NodeSelector = map[string]string{"zone": "b"}
	requireStatus(t, h.try(v1("Pod", ""), q), 403, "conflicts with its namespace node label selector")
	h.annotate(map[string]string{"scheduler.alpha.kubernetes.io/node-selector": "zone=b"})
	require.Equal(t, map[string]string{"zone": "b"}, put(h, v1("Pod", ""), smallPod("r")).Spec.NodeSelector)

	other := build(t)
	require.ErrorContains(t, other.install(Plugins{Enable: []string{"PodNodeSelector"}, Config: configured(t,
		"- {name: PodNodeSelector, configuration: {podNodeSelector: {}}}\n")}), "podNodeSelector")
}

func TestPluginsThatAreOffByDefault(t *testing.T) {
	h := secured(t, Plugins{
		Enable: []string{
			"LimitPodHardAntiAffinityTopology", "ExtendedResourceToleration", "OwnerReferencesPermissionEnforcement",
			"NamespaceExists", "AlwaysAdmit",
		},
	})
	p := smallPod("p")
	p.Spec.Affinity = &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}}},
	}
	requireStatus(t, h.try(v1("Pod", ""), p), 403,
		"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is "+
			"allowed")

	q := smallPod("q")
	one := corev1.ResourceList{"example.com/device": resource.MustParse("1")}
	q.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	require.Contains(t, put(h, v1("Pod", ""), q).Spec.Tolerations, corev1.Toleration{
		Key:      "example.com/device",
		Operator: corev1.TolerationOpExists,
		Effect:   corev1.TaintEffectNoSchedule,
	})

	owner := put(h, at(appsv1.SchemeGroupVersion.WithKind("Deployment"), "work", ""), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "work"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: smallPod("x").Spec},
		},
	})
	owned := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "owned", Namespace: "work", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: owner.UID, BlockOwnerDeletion: new(true)}}},
	}
	h.UseAuthorizer(authorizer.AuthorizerFunc(func(_ context.Context,
		a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetSubresource() == "finalizers" {
			return authorizer.DecisionDeny, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	}))
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "nobody"})
	_, err := h.Create(ctx, v1("ConfigMap", ""), owned, metav1.CreateOptions{})
	requireStatus(t, err, 403, "cannot set blockOwnerDeletion")

	denied := build(t)
	require.NoError(t, denied.install(Plugins{Enable: []string{"AlwaysDeny"}}))
	requireStatus(t,
		denied.try(v1("ConfigMap", ""), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "work"}}), 403,
		"admission control is denying all modifications")
}

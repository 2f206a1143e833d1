package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/capabilities"
)

// refusing is a plugin that records its calls and rejects creates on subresources in one stage.
type refusing struct {
	stage string // "admit" or "validate"
	seen  []admission.Attributes
}

func (*refusing) Handles(admission.Operation) bool { return true }

func (r *refusing) decide(stage string, a admission.Attributes) error {
	if stage != r.stage || a.GetSubresource() == "" {
		return nil
	}
	r.seen = append(r.seen, a)
	return admission.NewForbidden(a, errors.New("refused by the test"))
}

func (r *refusing) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return r.decide("admit", a)
}

func (r *refusing) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return r.decide("validate", a)
}

func TestPluginsSeeSubresourcesBeforeAnythingIsWritten(t *testing.T) {
	h := build(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	h.cfg.Tokens, err = NewTokens("https://issuer", key)
	require.NoError(t, err)
	put(h, v1("ServiceAccount", ""), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "work"},
	})
	put(h, v1("Pod", ""), smallPod("p"))
	meta := metav1.ObjectMeta{Name: "p", Namespace: "work"}
	for _, stage := range []string{"admit", "validate"} {
		plugin := &refusing{stage: stage}
		h.admission = admission.NewChainHandler(plugin)
		for _, c := range []struct {
			target Target
			obj    runtime.Object
			seen   runtime.Object
		}{
			{sub(v1("Pod", "p"), "eviction"), &policyv1.Eviction{ObjectMeta: meta}, &policy.Eviction{}},
			{
				sub(v1("Pod", "p"), "binding"),
				&corev1.Binding{ObjectMeta: meta, Target: corev1.ObjectReference{Name: "n"}},
				&core.Binding{},
			},
			{sub(v1("ServiceAccount", "robot"), "token"), &authenticationv1.TokenRequest{}, &authentication.TokenRequest{}},
		} {
			before := answer[*corev1.Pod](t, readPod(h, "p"), nil)
			_, err := h.Create(h.ctx, c.target, c.obj, metav1.CreateOptions{})
			requireStatus(t, err, 403, "refused by the test")
			a := plugin.seen[len(plugin.seen)-1]
			require.IsType(t, c.seen, a.GetObject())
			require.Equal(t, c.target.Subresource, a.GetSubresource())
			require.Equal(t, admission.Create, a.GetOperation())
			require.Equal(t, c.target.Name, a.GetName())
			require.Equal(t, before, answer[*corev1.Pod](t, readPod(h, "p"), nil), "nothing was written")
		}
	}
}

func readPod(h *env, name string) Result {
	h.t.Helper()
	res, err := h.Get(h.ctx, v1("Pod", name), metav1.GetOptions{})
	require.NoError(h.t, err)
	return res
}

func TestWritesNeedAnAdmissionChain(t *testing.T) {
	h := build(t)
	put(h, v1("ConfigMap", ""), configMap("a"))
	h.UseAdmission(nil)
	_, err := h.Create(h.ctx, v1("ConfigMap", ""), configMap("b"), metav1.CreateOptions{})
	requireStatus(t, err, 500, "no admission chain")
	_, err = h.Patch(h.ctx, v1("ConfigMap", "a"), types.MergePatchType, []byte(`{"data":{"k":"v"}}`),
		metav1.PatchOptions{})
	requireStatus(t, err, 500, "no admission chain")
	_, err = h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{})
	requireStatus(t, err, 500, "no admission chain")
}

func TestNothingIsPostedInATerminatingNamespace(t *testing.T) {
	h := build(t)
	put(h, v1("Pod", ""), smallPod("p"))
	_, err := h.Delete(h.ctx, at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", "work"), metav1.DeleteOptions{})
	require.NoError(t, err)
	_, err = h.Create(h.ctx, sub(v1("Pod", "p"), "eviction"), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}},
		metav1.CreateOptions{})
	requireStatus(t, err, 403, "unable to create new content in namespace work because it is being terminated")
}

func TestSystemPriorityClassesStay(t *testing.T) {
	h := build(t)
	classes := func(name string) Target {
		return at(schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"), "", name)
	}
	put(h, classes(""), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2000001000,
	})
	_, err := h.Delete(h.ctx, classes("system-node-critical"), metav1.DeleteOptions{})
	requireStatus(t, err, 403,
		`priorityclasses.scheduling.k8s.io "system-node-critical" is forbidden: this is a system priority class and cannot be deleted`)
	_, err = h.DeleteCollection(h.ctx, classes(""), metav1.DeleteOptions{}, metav1.ListOptions{})
	requireStatus(t, err, 403, "cannot be deleted")
	put(h, classes(""), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Value: 1})
	_, err = h.Delete(h.ctx, classes("mine"), metav1.DeleteOptions{})
	require.NoError(t, err)
}

func privilegedPod(name string) *corev1.Pod {
	p := smallPod(name)
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return p
}

func TestPrivilegedPodsAreAllowedUnlessDenied(t *testing.T) {
	defer func() { capabilities.ResetForTest(); capabilities.Setup(true, 0) }()
	capabilities.ResetForTest()
	h := build(t)
	put(h, v1("Pod", ""), privilegedPod("p"))

	capabilities.ResetForTest()
	cfg := h.cfg
	cfg.DenyPrivileged = true
	strict, err := New(cfg)
	require.NoError(t, err)
	_, err = strict.Create(h.ctx, v1("Pod", ""), privilegedPod("q"), metav1.CreateOptions{})
	requireStatus(t, err, 422, "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy")
}

func TestRestartAllContainersRules(t *testing.T) {
	h := build(t)
	p := smallPod("p")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	rules := []corev1.ContainerRestartRule{
		{Action: corev1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}},
	}
	p.Spec.Containers[0].RestartPolicy, p.Spec.Containers[0].RestartPolicyRules = new(corev1.ContainerRestartPolicyNever),
		rules
	side := *p.Spec.Containers[0].DeepCopy()
	side.Name, side.RestartPolicy = "side", new(corev1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = []corev1.Container{side}
	put(h, v1("Pod", ""), p.DeepCopy())
	for want, change := range map[string]func(*corev1.Container){
		`spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used`: func(c *corev1.Container) { c.RestartPolicy = nil },
		`spec.containers[0].restartPolicyRules[0].action: Unsupported value: "RestartPod"`:                         func(c *corev1.Container) { c.RestartPolicyRules[0].Action = "RestartPod" },
		`spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified`:                    func(c *corev1.Container) { c.RestartPolicyRules[0].ExitCodes = nil },
		`spec.containers[0].restartPolicyRules: Too many: 21: must have at most 20 items`: func(c *corev1.Container) {
			for range 20 {
				c.RestartPolicyRules = append(c.RestartPolicyRules, c.RestartPolicyRules[0])
			}
		},
	} {
		q := p.DeepCopy()
		q.Name = "q"
		change(&q.Spec.Containers[0])
		_, err := h.Create(h.ctx, v1("Pod", ""), q, metav1.CreateOptions{})
		requireStatus(t, err, 422, want)
	}
}

package registry

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/capabilities"
)

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

func TestPluginOptions(t *testing.T) {
	names := func(p Plugins) (list []string) {
		on, err := p.on()
		require.NoError(t, err)
		for _, o := range on {
			list = append(list, o.name)
		}
		return list
	}
	require.NotContains(t, names(Plugins{}), "AlwaysPullImages")
	require.Contains(t, names(Plugins{Enable: []string{"AlwaysPullImages", "NamespaceLifecycle"}}), "AlwaysPullImages")
	require.Subset(t, names(Plugins{}), []string{"PodSecurity", "EventRateLimit", "DenyServiceExternalIPs", "ResourceQuota"})
	require.NotContains(t, names(Plugins{Disable: []string{"EventRateLimit"}}), "EventRateLimit")
	for wrong, p := range map[string]Plugins{
		`unknown admission plugin "NoSuch": there are AlwaysPullImages, `: {Enable: []string{"NoSuch"}},
		`unknown admission plugin "nosuch"`:                               {Disable: []string{"nosuch"}},
		"NamespaceLifecycle cannot be disabled":                           {Disable: []string{"NamespaceLifecycle"}},
		"Priority is both enabled and disabled":                           {Enable: []string{"Priority"}, Disable: []string{"Priority"}},
	} {
		_, err := p.on()
		require.ErrorContains(t, err, wrong)
	}
}

func TestAdmissionConfigurationIsStrict(t *testing.T) {
	h := build(t)
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"
	for name, c := range map[string]struct{ text, wrong string }{
		"not there":     {"", "no such file"},
		"another kind":  {"apiVersion: v1\nkind: Pod\n", "no kind"},
		"unknown field": {head + "plugin: []\n", "unknown field"},
		"no such plugin": {head + "plugins: [{name: PodSecurityPolicy, configuration: {}}]\n",
			`plugin "PodSecurityPolicy": there is no such plugin, or it is not enabled`},
		"not enabled": {head + "plugins: [{name: AlwaysPullImages, configuration: {}}]\n", "it is not enabled"},
		"no file":     {head + "plugins: [{name: PodSecurity, path: none.yaml}]\n", "none.yaml"},
		"no level": {head + `plugins:
- name: PodSecurity
  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: strict}}
`, "strict"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "admission.yaml")
			if c.text != "" {
				require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
			}
			require.ErrorContains(t, h.usePlugins(Plugins{Config: path}), c.wrong)
		})
	}
}

// secured is a house with all plugins, and the service account that pods want.
func secured(t *testing.T, p Plugins) *house {
	h := build(t)
	require.NoError(t, h.usePlugins(p))
	put(h, v1("ServiceAccount", ""), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "work"}})
	return h
}

func (h *house) label(labels map[string]string) []string {
	h.t.Helper()
	var said warnings
	ctx := warning.WithWarningRecorder(h.ctx, &said)
	target := at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", "work")
	res, err := h.Get(ctx, target, metav1.GetOptions{})
	ns := answer[*corev1.Namespace](h.t, res, err).DeepCopy()
	ns.Labels = labels
	_, err = h.Update(ctx, target, ns, metav1.UpdateOptions{})
	require.NoError(h.t, err)
	return said.text
}

func TestPodSecurityByLabels(t *testing.T) {
	h := secured(t, Plugins{})
	put(h, v1("Pod", ""), privilegedPod("free"))
	said := h.label(map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"})
	require.Contains(t, said, `existing pods in namespace "work" violate the new PodSecurity enforce level "baseline:latest"`)
	requireStatus(t, h.try(v1("Pod", ""), privilegedPod("p")), 403,
		`pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not set securityContext.privileged=true)`)

	var seen warnings
	ctx := warning.WithWarningRecorder(h.ctx, &seen)
	_, err := h.Create(ctx, v1("Pod", ""), smallPod("small"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Len(t, seen.text, 1)
	require.Contains(t, seen.text[0], `would violate PodSecurity "restricted:latest"`)

	// A controller's template is not refused, but warned of.
	seen.text = nil
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: privilegedPod("x").Spec}
	_, err = h.Create(ctx, at(appsv1.SchemeGroupVersion.WithKind("Deployment"), "work", ""), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "work"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Len(t, seen.text, 1)
	require.Contains(t, seen.text[0], "would violate PodSecurity")

	// An older version of the policy, and an exempt level.
	h.label(map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.20"})
	requireStatus(t, h.try(v1("Pod", ""), smallPod("old")), 403, `violates PodSecurity "restricted:v1.20"`)
	h.label(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	require.NoError(t, h.try(v1("Pod", ""), privilegedPod("p")))
	target := at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", "wrong")
	_, err = h.Create(h.ctx, target, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "wrong", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "strict"}}}, metav1.CreateOptions{})
	requireStatus(t, err, 422, `must be one of privileged, baseline, restricted`)
}

func TestPodSecurityDefault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admission.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  path: pods.yaml
`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "pods.yaml"), []byte(`
apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: baseline}
exemptions: {usernames: [installer]}
`), 0o600))
	h := secured(t, Plugins{Config: path})
	requireStatus(t, h.try(v1("Pod", ""), privilegedPod("p")), 403, "violates PodSecurity")
	h.ctx = request.WithUser(context.Background(), &user.DefaultInfo{Name: "installer", Groups: []string{"system:masters"}})
	require.NoError(t, h.try(v1("Pod", ""), privilegedPod("p")))
}

func TestServicesMayNotTakeAddresses(t *testing.T) {
	svc := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"},
			Spec: corev1.ServiceSpec{ExternalIPs: ips, Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	h := secured(t, Plugins{})
	requireStatus(t, h.try(v1("Service", ""), svc("192.0.2.1")), 403, "Use of external IPs is denied by admission control")
	h = secured(t, Plugins{Disable: []string{"DenyServiceExternalIPs"}})
	require.NoError(t, h.try(v1("Service", ""), svc("192.0.2.1")))
	require.NoError(t, h.usePlugins(Plugins{}))
	have := answer[*corev1.Service](t, readAt(h, v1("Service", "s")), nil).DeepCopy()
	have.Labels = map[string]string{"a": "b"}
	_, err := h.Update(h.ctx, v1("Service", "s"), have, metav1.UpdateOptions{})
	require.NoError(t, err, "what a service has it may keep")
}

func TestEventsOfANamespaceAreLimited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admission.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits: [{type: Namespace, qps: 1, burst: 2}]
`), 0o600))
	event := func(i int) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", i), Namespace: "work"},
			InvolvedObject: corev1.ObjectReference{Namespace: "work"}, FirstTimestamp: metav1.Now()}
	}
	create := func(h *house) (err error) {
		for i := 0; i < 20 && err == nil; i++ {
			err = h.try(v1("Event", ""), event(i))
		}
		return err
	}
	requireStatus(t, create(secured(t, Plugins{Config: path})), 429, "limit reached on type Namespace for key work")
	require.NoError(t, create(secured(t, Plugins{})))
}

func TestAlwaysPullImages(t *testing.T) {
	h := secured(t, Plugins{Enable: []string{"AlwaysPullImages"}})
	p := smallPod("p")
	p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	require.Equal(t, corev1.PullAlways, put(h, v1("Pod", ""), p).Spec.Containers[0].ImagePullPolicy)
}

func readAt(h *house, t Target) Result {
	h.t.Helper()
	res, err := h.Get(h.ctx, t, metav1.GetOptions{})
	require.NoError(h.t, err)
	return res
}

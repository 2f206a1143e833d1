package admission

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
)

func privilegedPod(name string) *corev1.Pod {
	p := smallPod(name)
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return p
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
	require.Subset(t, names(Plugins{}), []string{
		"PodSecurity", "EventRateLimit", "DenyServiceExternalIPs", "ResourceQuota",
	})
	require.NotContains(t, names(Plugins{Disable: []string{"EventRateLimit"}}), "EventRateLimit")
	for wrong, p := range map[string]Plugins{
		`unknown admission plugin "NoSuch": there are AlwaysAdmit, `: {Enable: []string{"NoSuch"}},
		`unknown admission plugin "nosuch"`:                          {Disable: []string{"nosuch"}},
		"NamespaceLifecycle cannot be disabled":                      {Disable: []string{"NamespaceLifecycle"}},
		"Priority is both enabled and disabled": {
			Enable: []string{"Priority"}, Disable: []string{"Priority"},
		},
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
			require.ErrorContains(t, h.install(Plugins{Config: path}), c.wrong)
		})
	}
}

func (h *env) label(labels map[string]string) []string {
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
	said := h.label(map[string]string{
		"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted",
	})
	require.Contains(t, said,
		`existing pods in namespace "work" violate the new PodSecurity enforce level "baseline:latest"`)
	requireStatus(t, h.try(v1("Pod", ""), privilegedPod("p")), 403,
		`pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not set securityContext.privileged=true)`)

	var seen warnings
	ctx := warning.WithWarningRecorder(h.ctx, &seen)
	_, err := h.Create(ctx, v1("Pod", ""), smallPod("small"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Len(t, seen.text, 1)
	require.Contains(t, seen.text[0], `would violate PodSecurity "restricted:latest"`)

	// A violation in a controller's pod template causes a warning, not an error.
	seen.text = nil
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: privilegedPod("x").Spec,
	}
	_, err = h.Create(ctx, at(appsv1.SchemeGroupVersion.WithKind("Deployment"), "work", ""), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "work"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Len(t, seen.text, 1)
	require.Contains(t, seen.text[0], "would violate PodSecurity")

	// An older version of the policy, and an exempt level.
	h.label(map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.20",
	})
	requireStatus(t, h.try(v1("Pod", ""), smallPod("old")), 403, `violates PodSecurity "restricted:v1.20"`)
	h.label(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	require.NoError(t, h.try(v1("Pod", ""), privilegedPod("p")))
	target := at(corev1.SchemeGroupVersion.WithKind("Namespace"), "", "wrong")
	_, err = h.Create(h.ctx, target,
		&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{
				Name: "wrong", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "strict"},
			},
		}, metav1.CreateOptions{})
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
	h.ctx = request.WithUser(context.Background(), &user.DefaultInfo{
		Name: "installer", Groups: []string{"system:masters"},
	})
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
	require.NoError(t, h.install(Plugins{}))
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
	create := func(h *env) (err error) {
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

// An AdmissionConfiguration can require a quota for a priority class.
func TestLimitedResources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admission.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [high]}
`), 0o600))
	h := secured(t, Plugins{Config: path, Disable: []string{"Priority"}}) // Priority would refuse the unknown class
	p := smallPod("a")
	p.Spec.PriorityClassName = "high"
	require.ErrorContains(t, h.try(v1("Pod", ""), p), "insufficient quota to match these scopes")
	require.NoError(t, h.try(v1("Pod", ""), smallPod("b")))
}

func TestIngressesGetTheDefaultClass(t *testing.T) {
	h := secured(t, Plugins{})
	target := at(networkingv1.SchemeGroupVersion.WithKind("Ingress"), "work", "")
	ingress := func(name string) *networkingv1.Ingress {
		backend := &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}},
		}
		return &networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"},
			Spec:       networkingv1.IngressSpec{DefaultBackend: backend},
		}
	}
	require.Nil(t, put(h, target, ingress("before")).Spec.IngressClassName)
	put(h, at(networkingv1.SchemeGroupVersion.WithKind("IngressClass"), "", ""), &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: "main", Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"},
		},
		Spec: networkingv1.IngressClassSpec{Controller: "example.com/main"}})
	require.Equal(t, "main", *put(h, target, ingress("after")).Spec.IngressClassName)
}

func TestUpstreamPlugins(t *testing.T) {
	h := secured(t, Plugins{})
	p := put(h, v1("Pod", ""), smallPod("p"))
	require.Equal(t, "default", p.Spec.ServiceAccountName)
	require.NotNil(t, p.Spec.Volumes[0].Projected, "its token is mounted")
	require.EqualValues(t, 0, *p.Spec.Priority)
	require.Equal(t, "node.kubernetes.io/not-ready", p.Spec.Tolerations[0].Key)

	n := put(h, v1("Node", ""), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	require.Equal(t, "node.kubernetes.io/not-ready", n.Spec.Taints[0].Key)

	node := request.WithUser(h.ctx, &user.DefaultInfo{Name: "system:node:m", Groups: []string{"system:nodes"}})
	_, err := h.Delete(node, v1("Node", "n"), metav1.DeleteOptions{})
	requireStatus(t, err, 403, `node "m" is not allowed to modify node "n"`)
	_, err = h.Create(node, v1("Pod", ""), smallPod("q"), metav1.CreateOptions{})
	requireStatus(t, err, 403, "can only create mirror pods")

	// A node can set its own pod CIDR neither on create nor later.
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: corev1.NodeSpec{PodCIDR: "10.42.7.0/24"}}
	_, err = h.Create(node, v1("Node", ""), own, metav1.CreateOptions{})
	requireStatus(t, err, 403, "a node may not set its own podCIDR")
	own.Spec.PodCIDR = ""
	res, err := h.Create(node, v1("Node", ""), own, metav1.CreateOptions{})
	own = copied(answer[*corev1.Node](t, res, err))
	own.Spec.PodCIDR, own.Spec.PodCIDRs = "10.42.7.0/24", []string{"10.42.7.0/24"}
	_, err = h.Update(node, v1("Node", "m"), own, metav1.UpdateOptions{})
	requireStatus(t, err, 403, "a node may not set its own podCIDR")

	// Nor what systems act on: the REST facade sends HTTP requests to the address in this annotation.
	mine := copied(answer[*corev1.Node](t, res, nil))
	mine.Annotations = map[string]string{"rest.coracle.dev/address": "169.254.169.254:80"}
	for _, part := range []string{"", "status"} {
		_, err = h.Update(node, sub(v1("Node", "m"), part), copied(mine), metav1.UpdateOptions{})
		requireStatus(t, err, 403, "may not set labels and annotations of *.coracle.dev")
	}
	mine.Annotations, mine.Labels = nil, map[string]string{"tasks.coracle.dev/external": "true"}
	_, err = h.Update(node, v1("Node", "m"), mine, metav1.UpdateOptions{})
	requireStatus(t, err, 403, "may not set labels and annotations of *.coracle.dev")
	res, err = h.Update(h.ctx, v1("Node", "m"), own, metav1.UpdateOptions{})
	own = copied(answer[*corev1.Node](t, res, err))
	require.Equal(t, "10.42.7.0/24", own.Spec.PodCIDR)
	own.Labels = map[string]string{"example.com/a": "b"}
	_, err = h.Update(node, v1("Node", "m"), own, metav1.UpdateOptions{})
	require.NoError(t, err, "and goes on with what it was given")

	q := smallPod("q")
	q.Spec.ServiceAccountName = "ghost"
	_, err = h.Create(h.ctx, v1("Pod", ""), q, metav1.CreateOptions{})
	requireStatus(t, err, 403, `error looking up service account work/ghost: serviceaccount "ghost" not found`)
	q = smallPod("q")
	q.Spec.PriorityClassName = "urgent"
	_, err = h.Create(h.ctx, v1("Pod", ""), q, metav1.CreateOptions{})
	requireStatus(t, err, 403, "no PriorityClass with name urgent was found")
}

// With upstream's plugins, a node can evict only its own pods.
func TestANodeEvictsItsOwnPodsOnly(t *testing.T) {
	h := build(t)
	for name, node := range map[string]string{"mine": "a", "other": "b"} {
		p := smallPod(name)
		p.Spec.NodeName = node
		put(h, v1("Pod", ""), p)
	}
	require.NoError(t, h.install(Plugins{}))
	node := request.WithUser(context.Background(), &user.DefaultInfo{
		Name: "system:node:a", Groups: []string{"system:nodes"},
	})
	evict := func(name string) error {
		_, err := h.Create(node, sub(v1("Pod", name), "eviction"),
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}}, metav1.CreateOptions{})
		return err
	}
	requireStatus(t, evict("other"), 403, "can only evict pods with spec.nodeName set to itself")
	require.Empty(t, answer[*corev1.Pod](t, readAt(h, v1("Pod", "other")), nil).Status.Conditions)
	require.NoError(t, evict("mine"))
}

// Package envtest runs a test suite for controller-runtime's envtest with Coracle's programs.
package envtest

import (
	"context"

	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

var boat = schema.GroupVersionKind{Group: "harbour.example.com", Version: "v1", Kind: "Boat"}

func assets(t *testing.T) string {
	t.Helper()
	coracle, err := filepath.Abs("../../../bin/coracle")
	require.NoError(t, err)
	require.FileExists(t, coracle, "run `make build` first")
	dir := filepath.Join(t.TempDir(), "assets")
	for range 2 { // the second run replaces the links
		out, err := exec.Command(coracle, "envtest", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, "export KUBEBUILDER_ASSETS="+dir+"\n", string(out))
	}
	return dir
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats." + boat.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: boat.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural:   "boats",
				Singular: "boat",
				Kind:     boat.Kind,
				ListKind: boat.Kind + "List",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: boat.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"colour": text}},
					}}},
			}},
		},
	}
}

func hook() *admissionv1.ValidatingWebhookConfiguration {
	path, none, fail := "/validate", admissionv1.SideEffectClassNone, admissionv1.Fail
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "boats"}, Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "boats.harbour.example.com", SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{
				Service: &admissionv1.ServiceReference{Namespace: "default", Name: "hook", Path: &path},
			},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{
					APIGroups:   []string{boat.Group},
					APIVersions: []string{"v1"},
					Resources:   []string{"boats"},
				}}},
		}},
	}
}

func newBoat(name, colour string) *unstructured.Unstructured {
	b := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"colour": colour}}}
	b.SetGroupVersionKind(boat)
	b.SetNamespace("default")
	b.SetName(name)
	return b
}

// paint reconciles a Boat to a ConfigMap of the same name with its colour.
type paint struct{ client.Client }

func (p paint) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	b := newBoat("", "")
	if err := p.Get(ctx, r.NamespacedName, b); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	colour, _, _ := unstructured.NestedString(b.Object, "spec", "colour")
	err := p.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}, Data: map[string]string{"colour": colour},
	})
	return ctrl.Result{}, client.IgnoreAlreadyExists(err)
}

func refuseRed(_ context.Context, r admission.Request) admission.Response {
	var b unstructured.Unstructured
	if err := b.UnmarshalJSON(r.Object.Raw); err != nil {
		return admission.Errored(400, err)
	}
	if colour, _, _ := unstructured.NestedString(b.Object, "spec", "colour"); colour == "red" {
		return admission.Denied("boats are not red")
	}
	return admission.Allowed("")
}

// patience replaces envtest's timeouts, some of which are too short for a busy machine.
const patience = 2 * time.Minute

func TestSuiteRunsUnchanged(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", assets(t))
	environment := &envtest.Environment{ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
		CRDInstallOptions: envtest.CRDInstallOptions{
			CRDs: []*apiextensionsv1.CustomResourceDefinition{definition()}, MaxTime: patience,
		},
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{hook()}, MaxTime: patience,
		},
	}
	began := time.Now()
	cfg, err := environment.Start()
	require.NoError(t, err)
	t.Logf("started after %s", time.Since(began))
	began = time.Now()
	t.Cleanup(func() {
		began := time.Now()
		require.NoError(t, environment.Stop())
		t.Logf("stopped after %s", time.Since(began))
	})

	o := environment.WebhookInstallOptions
	manager, err := ctrl.NewManager(cfg, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host:    o.LocalServingHost,
			Port:    o.LocalServingPort,
			CertDir: o.LocalServingCertDir,
		})})
	require.NoError(t, err)
	manager.GetWebhookServer().Register("/validate", &webhook.Admission{Handler: admission.HandlerFunc(refuseRed)})
	require.NoError(t,
		ctrl.NewControllerManagedBy(manager).For(newBoat("", "")).Named("paint").Complete(paint{manager.GetClient()}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	require.Eventually(t, func() bool {
		return manager.GetWebhookServer().StartedChecker()(nil) == nil
	}, time.Minute, 5*time.Millisecond)

	c, err := client.NewWithWatch(cfg, client.Options{})
	require.NoError(t, err)
	w, err := c.Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace("default"))
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, c.Create(t.Context(), newBoat("good", "blue")))
	err = c.Create(t.Context(), newBoat("bad", "red"))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `admission webhook "boats.harbour.example.com" denied the request: boats are not red`)
	for e := range w.ResultChan() {
		if cm := e.Object.(*corev1.ConfigMap); cm.Name == "good" {
			require.Equal(t, "blue", cm.Data["colour"])
			t.Logf("ran after %s", time.Since(began))
			return
		}
	}
	t.Fatal("the watch ended")
}

// An environment's user has only the rights that the suite grants.
func TestUsersOfAnEnvironment(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", assets(t))
	environment := &envtest.Environment{ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}
	_, err := environment.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, environment.Stop()) })
	alice, err := environment.AddUser(envtest.User{Name: "alice"}, nil)
	require.NoError(t, err)
	c, err := client.New(alice.Config(), client.Options{})
	require.NoError(t, err)
	require.ErrorContains(t, c.List(t.Context(), &corev1.SecretList{}), `User "alice" cannot list resource "secrets"`,
		"she may discover what there is")
	nobody, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host: alice.Config().Host, TLSClientConfig: rest.AnonymousClientConfig(alice.Config()).TLSClientConfig,
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: clientscheme.Codecs.WithoutConversion()},
	})
	require.NoError(t, err)
	err = nobody.Get().AbsPath("/api/v1/secrets").Do(t.Context()).Error() // no discovery: anonymous users may not use it
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `User "system:anonymous" cannot list resource "secrets"`)
	kubectl, err := alice.Kubectl()
	require.NoError(t, err)
	_, stderr, err := kubectl.Run("get", "secrets")
	require.Error(t, err)
	text := make([]byte, 1000)
	n, _ := stderr.Read(text)
	require.Contains(t, string(text[:n]), `User "alice" cannot list resource "secrets"`)
}

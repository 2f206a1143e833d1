package admission

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/warning"
	toolscache "k8s.io/client-go/tools/cache"

	"k8s.io/kubernetes/pkg/apis/core"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/local"
)

type hook struct {
	*httptest.Server
	calls atomic.Int32
	mu    sync.Mutex
	last  admissionv1.AdmissionRequest
}

// request returns the last request that the webhook received.
func (k *hook) request() admissionv1.AdmissionRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// serveHook starts a webhook. f fills in its responses.
func serveHook(t *testing.T, f func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse)) *hook {
	t.Helper()
	k := &hook{}
	k.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err := json.Unmarshal(body, &review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		k.calls.Add(1)
		k.mu.Lock()
		k.last = *review.Request
		k.mu.Unlock()
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		f(review.Request, review.Response)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(k.Close)
	return k
}

func (k *hook) client() registration.WebhookClientConfig {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.Certificate().Raw})
	return registration.WebhookClientConfig{URL: &k.URL, CABundle: ca}
}

// on returns a rule for all operations on resources of any group.
func on(resources ...string) []registration.RuleWithOperations {
	return []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.OperationAll},
		Rule: registration.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: resources}}}
}

func mutatingHook(name string, k *hook, resources ...string) registration.MutatingWebhook {
	return registration.MutatingWebhook{Name: name + ".coracle.test", ClientConfig: k.client(), Rules: on(resources...),
		SideEffects: new(registration.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		TimeoutSeconds: new(int32(30))}
}

func validatingHook(name string, k *hook, resources ...string) registration.ValidatingWebhook {
	return registration.ValidatingWebhook{Name: name + ".coracle.test", ClientConfig: k.client(), Rules: on(resources...),
		SideEffects: new(registration.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		TimeoutSeconds: new(int32(30))}
}

func mutate(h *env, name string, hooks ...registration.MutatingWebhook) {
	put(h, at(registration.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"), "", ""),
		&registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks})
}

func validateBy(h *env, name string, hooks ...registration.ValidatingWebhook) {
	put(h, at(registration.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"), "", ""),
		&registration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks})
}

func patchWith(patch string) func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse) {
	return func(_ *admissionv1.AdmissionRequest, r *admissionv1.AdmissionResponse) {
		if patch != "" {
			r.Patch, r.PatchType = []byte(patch), new(admissionv1.PatchTypeJSONPatch)
		}
	}
}

func settings(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work", Labels: map[string]string{"a": "b"}}, Data: data,
	}
}

func TestMutatingWebhooksChangeWhatIsWritten(t *testing.T) {
	h := secured(t, Plugins{})
	k := serveHook(t, patchWith(`[{"op":"add","path":"/metadata/labels/hooked","value":"yes"}]`))
	mutate(h, "labels", mutatingHook("labels", k, "configmaps", "tasks"))

	made := put(h, v1("ConfigMap", ""), settings("one", map[string]string{"k": "v"}))
	require.Equal(t, "yes", made.Labels["hooked"])
	require.Equal(t, map[string]string{"k": "v"}, made.Data)
	require.EqualValues(t, 1, k.calls.Load())
	require.Equal(t, "admin", k.request().UserInfo.Username)
	require.Equal(t, admissionv1.Create, k.request().Operation)

	// A kind that upstream's scheme does not have.
	task := put(h, at(tasks.GroupVersion.WithKind("Task"), "work", ""), &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "work", Labels: map[string]string{"a": "b"}},
		Spec:       tasks.TaskSpec{Image: "i"}})
	require.Equal(t, "yes", task.Labels["hooked"])
	require.Equal(t, "i", task.Spec.Image)

	// Updates and deletions are sent too, with the old object.
	made = copied(made)
	made.Labels = map[string]string{"c": "d"}
	res, err := h.Update(h.ctx, v1("ConfigMap", "one"), made, metav1.UpdateOptions{})
	require.Equal(t, map[string]string{"c": "d", "hooked": "yes"}, answer[*corev1.ConfigMap](t, res, err).Labels)
	require.NotEmpty(t, k.request().OldObject.Raw)

	// Kinds that no rule matches are not sent. After the configuration is deleted, nothing is sent.
	put(h, v1("Secret", ""), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"}})
	_, err = h.Delete(h.ctx, at(registration.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"), "", "labels"),
		metav1.DeleteOptions{})
	require.NoError(t, err)
	before := k.calls.Load()
	put(h, v1("ConfigMap", ""), settings("two", nil))
	require.Equal(t, before, k.calls.Load())
}

func TestWebhooksAreInvokedAgainForEachOther(t *testing.T) {
	h := secured(t, Plugins{})
	first := serveHook(t, func(r *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		if strings.Contains(string(r.Object.Raw), `"second":"was here"`) {
			patchWith(`[{"op":"add","path":"/data/first","value":"saw second"}]`)(r, a)
		}
	})
	second := serveHook(t, patchWith(`[{"op":"add","path":"/data/second","value":"was here"}]`))
	again := mutatingHook("first", first, "configmaps")
	again.ReinvocationPolicy = new(registration.IfNeededReinvocationPolicy)
	mutate(h, "both", again, mutatingHook("second", second, "configmaps"))
	made := put(h, v1("ConfigMap", ""), settings("one", map[string]string{"k": "v"}))
	require.Equal(t, map[string]string{"k": "v", "first": "saw second", "second": "was here"}, made.Data)
	require.EqualValues(t, 2, first.calls.Load())
	require.EqualValues(t, 1, second.calls.Load())
}

func TestValidatingWebhooksRefuse(t *testing.T) {
	h := secured(t, Plugins{})
	k := serveHook(t, func(r *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		a.Warnings = []string{"looked at " + r.Name}
		if strings.Contains(string(r.Object.Raw), `"bad"`) {
			a.Allowed, a.Result = false, &metav1.Status{Message: "no bad data", Code: 403}
		}
	})
	validateBy(h, "no-bad", validatingHook("no-bad", k, "configmaps"))
	var said warnings
	h.ctx = warning.WithWarningRecorder(h.ctx, &said)
	put(h, v1("ConfigMap", ""), settings("good", nil))
	require.Equal(t, []string{"looked at good"}, said.text)
	requireStatus(t, h.try(v1("ConfigMap", ""), settings("evil", map[string]string{"k": "bad"})), 403,
		`admission webhook "no-bad.coracle.test" denied the request: no bad data`)
	_, err := h.Get(h.ctx, v1("ConfigMap", "evil"), metav1.GetOptions{})
	requireStatus(t, err, 404)
}

// Webhooks get CustomResourceDefinitions, whose internal version upstream's main scheme does not have.
func TestWebhooksSeeDefinitions(t *testing.T) {
	h := secured(t, Plugins{})
	k := serveHook(t, func(_ *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		a.Allowed, a.Result = false, &metav1.Status{Message: "no definitions"}
	})
	labels := serveHook(t, patchWith(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`))
	mutate(h, "labels", mutatingHook("labels", labels, "customresourcedefinitions"))
	validateBy(h, "none", validatingHook("none", k, "customresourcedefinitions"))
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	err := h.try(at(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), "", ""),
		&apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "boats.example.org"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.org", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Kind: "Boat"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
					{Name: "v1", Served: true, Storage: true, Schema: schema},
				}}})
	requireStatus(t, err, 400, "no definitions")
	require.Contains(t, string(k.request().Object.Raw), `"hooked":"yes"`)
}

func TestWebhooksThatMisbehave(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for name, c := range map[string]struct {
		timeout int32
		serve   http.HandlerFunc
		wrong   string
	}{
		"hangs": {1, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}, "context deadline exceeded"},
		"endless response": {20, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"a":"`)
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(strings.Repeat("[", 1<<20))); err != nil {
					return
				}
			}
		}, "larger than the limit of 8388608 bytes"},
		"invalid response": {20, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w,
				`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"another","allowed":true}}`)
		}, "expected response.uid"},
		"error response": {
			20, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", 500) }, "failed calling webhook",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := secured(t, Plugins{})
			k := &hook{Server: httptest.NewTLSServer(c.serve)}
			t.Cleanup(k.Close)
			strict := mutatingHook("strict", k, "configmaps")
			strict.TimeoutSeconds = new(c.timeout)
			lenient := mutatingHook("lenient", k, "secrets")
			lenient.FailurePolicy, lenient.TimeoutSeconds = new(registration.Ignore), new(c.timeout)
			mutate(h, "hooks", strict, lenient)
			requireStatus(t, h.try(v1("ConfigMap", ""), settings("one", nil)), 500, "strict.coracle.test", c.wrong)
			put(h, v1("Secret", ""), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"}})
		})
	}
}

// A cluster without webhooks and policies does not create their plugins.
func TestPluginsAreMadeOnDemand(t *testing.T) {
	h := secured(t, Plugins{})
	d := newOnDemand(nil, "none", nil, needs{h.Registry, h.clients, nil}, informerOf(h.clients))
	require.False(t, d.Handles("CREATE"))
	mutate(h, "empty")
	require.True(t, d.Handles("CREATE"))
	require.False(t, d.Handles("GET"))
}

func informerOf(c *local.Clients) toolscache.SharedIndexInformer {
	return c.Informers().Admissionregistration().V1().MutatingWebhookConfigurations().Informer()
}

func TestValidatingPolicies(t *testing.T) {
	h := secured(t, Plugins{})
	limit := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "limit", Namespace: "work"}, Data: map[string]string{"forbidden": "bad"},
	}
	put(h, v1("ConfigMap", ""), limit)
	group := registration.SchemeGroupVersion
	put(h, at(group.WithKind("ValidatingAdmissionPolicy"), "", ""), &registration.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-bad"},
		Spec: registration.ValidatingAdmissionPolicySpec{
			ParamKind: &registration.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: &registration.MatchResources{
				ResourceRules: []registration.NamedRuleWithOperations{{RuleWithOperations: on("secrets", "tasks")[0]}},
			},
			Validations: []registration.Validation{
				{
					Expression: "!has(object.metadata.labels) || object.metadata.labels.all(k, object.metadata.labels[k] != " +
						"params.data.forbidden)",
					Message: "a label is forbidden",
				},
			},
		}})
	put(h, at(group.WithKind("ValidatingAdmissionPolicyBinding"), "", ""), &registration.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "no-bad"},
		Spec: registration.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "no-bad", ValidationActions: []registration.ValidationAction{registration.Deny},
			ParamRef: &registration.ParamRef{
				Name:                    "limit",
				Namespace:               "work",
				ParameterNotFoundAction: new(registration.DenyAction),
			},
		}})
	bad := metav1.ObjectMeta{Name: "s", Namespace: "work", Labels: map[string]string{"l": "bad"}}
	dry := func(t string, o runtime.Object) error {
		target := v1("Secret", "")
		if t == "Task" {
			target = at(tasks.GroupVersion.WithKind("Task"), "work", "")
		}
		_, err := h.Create(h.ctx, target, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// Upstream reads policies once a second.
	var err error
	require.Eventually(t, func() bool {
		err = dry("Secret", &corev1.Secret{ObjectMeta: bad})
		return err != nil
	}, 2*time.Minute, 10*time.Millisecond)
	requireStatus(t, err, 422,
		`ValidatingAdmissionPolicy 'no-bad' with binding 'no-bad' denied request: a label is forbidden`)
	requireStatus(t, dry("Task", &tasks.Task{ObjectMeta: bad, Spec: tasks.TaskSpec{Image: "i"}}), 422,
		"a label is forbidden")
	bad.Labels["l"] = "good"
	require.NoError(t, dry("Secret", &corev1.Secret{ObjectMeta: bad}))
}

func TestWebhooksSeeConnections(t *testing.T) {
	h := secured(t, Plugins{})
	k := serveHook(t, func(r *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		a.Allowed = !strings.Contains(string(r.Object.Raw), "rm")
	})
	validateBy(h, "no-rm", validatingHook("no-rm", k, "pods/exec"))
	exec := sub(v1("Pod", "p"), "exec")
	require.NoError(t, h.AdmitConnect(h.ctx, exec, &core.PodExecOptions{Command: []string{"ls"}}))
	require.Equal(t, "PodExecOptions", k.request().Kind.Kind)
	require.Equal(t, admissionv1.Connect, k.request().Operation)
	requireStatus(t, h.AdmitConnect(h.ctx, exec, &core.PodExecOptions{Command: []string{"rm"}}), 400, "no-rm.coracle.test")
}

// A webhook for a scale sees the scale, as upstream, and can refuse it.
func TestWebhooksSeeScales(t *testing.T) {
	h := secured(t, Plugins{})
	k := serveHook(t, func(r *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse) {
		var now, was autoscalingv1.Scale
		require.NoError(t, json.Unmarshal(r.Object.Raw, &now))
		require.NoError(t, json.Unmarshal(r.OldObject.Raw, &was))
		a.Allowed = r.Kind.Kind == "Scale" && now.Kind == "Scale" && now.Spec.Replicas <= 2*max(was.Spec.Replicas, 1)
	})
	validateBy(h, "limit", validatingHook("limit", k, "deployments/scale"))
	labels := map[string]string{"app": "d"}
	target := at(appsv1.SchemeGroupVersion.WithKind("Deployment"), "work", "d")
	put(h, target, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "work"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: smallPod("").Spec},
		},
	})
	scale := func(n int) error {
		_, err := h.Patch(h.ctx, sub(target, "scale"), types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n),
			metav1.PatchOptions{})
		return err
	}
	require.NoError(t, scale(2))
	requireStatus(t, scale(5), 400, "limit.coracle.test")
}

package admission

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fromFiles returns plugins. The named plugin, configured by an object of the kind, reads files from dir.
func fromFiles(t *testing.T, plugin, kind string, files map[string]string) (p Plugins, dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	config := filepath.Join(t.TempDir(), "admission.yaml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- {name: %s, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: %s, staticManifestsDir: %s}}
`, plugin, kind, dir)), 0o600))
	return Plugins{Config: config, Schemas: describe}, dir
}

// denying returns the manifest of a validating policy that denies objects of a resource whose name is word.
func denying(group, resource, word string) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: names.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [%q], apiVersions: ["*"], operations: ["*"], resources: [%s]}]}
  validations: [{expression: "object.metadata.name != '%s'", message: it is forbidden by a file}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: names.static.k8s.io}
spec: {policyName: names.static.k8s.io, validationActions: [Deny]}
`, group, resource, word)
}

func TestValidatingPoliciesFromFiles(t *testing.T) {
	p, dir := fromFiles(t, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", map[string]string{
		"deny.yaml": denying("", "configmaps", "one"), "notes.txt": "no policy",
	})
	h := secured(t, p)
	// The first write is refused: no write passes before the policies are loaded.
	requireStatus(t, h.try(v1("ConfigMap", ""), settings("one", nil)), 422, "names.static.k8s.io",
		"it is forbidden by a file")
	put(h, v1("ConfigMap", ""), settings("two", nil))

	// A valid change is applied, an invalid one is not.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "deny.yaml"), []byte(denying("", "configmaps", "three")), 0o600))
	require.Eventually(t, func() bool {
		return apierrors.IsInvalid(h.try(v1("ConfigMap", ""), settings("three", nil)))
	}, 2*time.Minute, 10*time.Millisecond)
	put(h, v1("ConfigMap", ""), settings("one", nil))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more.yaml"), []byte("kind: Pod\napiVersion: v1\n"), 0o600))
	requireStatus(t, h.try(v1("ConfigMap", ""), settings("three", nil)), 422)
}

// Policies in the API cannot protect policies. Policies in files can.
func TestPoliciesFromFilesProtectPolicies(t *testing.T) {
	p, _ := fromFiles(t, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration",
		map[string]string{"deny.yaml": denying(registration.GroupName, "validatingadmissionpolicybindings", "one")})
	h := secured(t, p)
	binding := func(name string) error {
		return h.try(at(registration.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"), "", ""),
			&registration.ValidatingAdmissionPolicyBinding{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: registration.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: "any", ValidationActions: []registration.ValidationAction{registration.Deny},
				}})
	}
	requireStatus(t, binding("one"), 422, "it is forbidden by a file")
	require.NoError(t, binding("two"))
	requireStatus(t, binding("mine.static.k8s.io"), 422, "reserved for static manifest-based configurations")
}

func TestMutatingPoliciesFromFiles(t *testing.T) {
	p, _ := fromFiles(t, "MutatingAdmissionPolicy", "MutatingAdmissionPolicyConfiguration", map[string]string{
		"label.yaml": `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: label.static.k8s.io}
spec:
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [configmaps]}]}
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{metadata: Object.metadata{labels: {"from": "file"}}}'}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: label.static.k8s.io}
spec: {policyName: label.static.k8s.io}
`,
	})
	h := secured(t, p)
	// The kinds' schemas are loaded shortly after the first request.
	n := 0
	require.Eventually(t, func() bool {
		n++
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", n), Namespace: "work"}}
		res, err := h.Create(h.ctx, v1("ConfigMap", ""), made, metav1.CreateOptions{})
		return err == nil && answer[*corev1.ConfigMap](t, res, err).Labels["from"] == "file"
	}, 2*time.Minute, 10*time.Millisecond)
}

func TestWebhooksFromFiles(t *testing.T) {
	for plugin, patch := range map[string]string{
		"ValidatingAdmissionWebhook": "",
		"MutatingAdmissionWebhook":   `[{"op":"add","path":"/metadata/labels/hooked","value":"yes"}]`,
	} {
		t.Run(plugin, func(t *testing.T) {
			k := serveHook(t, patchWith(patch))
			kind := strings.ReplaceAll(plugin, "Admission", "") + "Configuration"
			ca := base64.StdEncoding.EncodeToString(k.client().CABundle)
			p, _ := fromFiles(t, plugin, "WebhookAdmissionConfiguration", map[string]string{"hook.yaml": fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata: {name: hook.static.k8s.io}
webhooks:
- name: hook.coracle.test
  clientConfig: {url: %q, caBundle: %q}
  rules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [configmaps]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`, kind, k.URL, ca)})
			h := secured(t, p)
			made := put(h, v1("ConfigMap", ""), settings("one", nil))
			require.EqualValues(t, 1, k.calls.Load())
			if patch != "" {
				require.Equal(t, "yes", made.Labels["hooked"])
			}
		})
	}
}

func TestInvalidManifestsKeepTheServerFromStarting(t *testing.T) {
	many := map[string]string{}
	for i := range maxManifests + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for wrong, files := range map[string]map[string]string{
		"must have a name ending with": {
			"a.yaml": strings.ReplaceAll(denying("", "configmaps", "one"), ".static.k8s.io", ".mine"),
		},
		"compilation failed":       {"a.yaml": denying("", "configmaps", "one' + ")},
		"has more than 1000 files": many,
		"more than 8388608 bytes": {
			"a.yaml": strings.Repeat("#", maxManifestBytes/2), "b.yaml": strings.Repeat("#", maxManifestBytes/2+1),
		},
		`no kind "Pod" is registered`: {"a.yaml": "apiVersion: v1\nkind: Pod\n"},
		`a.yaml: strict decoding error`: {
			"a.yaml": "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nnonsense: 1\n",
		},
	} {
		t.Run(wrong, func(t *testing.T) {
			p, _ := fromFiles(t, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", files)
			require.ErrorContains(t, build(t).install(p), wrong)
		})
	}
	p, dir := fromFiles(t, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", nil)
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
	require.ErrorContains(t, build(t).install(p), "pipe.yaml is not a regular file")
}

package commands

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func TestKontrolAdopt(t *testing.T) {
	live := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings", Labels: map[string]string{"app": "a"}},
		Data:       map[string]string{"color": "pink"},
	}
	taken := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "shop",
			Name:        "taken",
			Annotations: map[string]string{kontrol.AnnotationID: "9"},
		},
	}
	owner := true
	owned := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       "shop",
			Name:            "owned",
			OwnerReferences: []metav1.OwnerReference{{Kind: "Moon", Name: "m", Controller: &owner}},
		},
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "key"}, Data: map[string][]byte{"k": []byte("hush")},
	}
	c := kontrolCluster(t, targetCluster(t, live, taken, owned, secret), edge())
	adopt := func(o AdoptOptions) (string, string, int) {
		o.Cluster = "edge"
		return ran(t, func(at command.Terminal) error { return c.Adopt(t.Context(), o, at) })
	}
	for object, says := range map[string]string{
		"settings": "is not KIND/NAME", "moon/a": `no kind "moon"`, "configmap/none": "not found",
		"configmap/taken": "the resource with the id 9 has it", "configmaps/owned": "belongs to Moon m",
	} {
		_, wrong, code := adopt(AdoptOptions{Object: object})
		require.Equal(t, 1, code, object)
		require.Contains(t, wrong, says)
	}
	_, wrong, _ := adopt(AdoptOptions{Object: "configmap/settings", Mode: "hope"})
	require.Contains(t, wrong, "is not report, correct or enforce")

	preview, says, code := adopt(AdoptOptions{Object: "configmap/settings"})
	require.Zero(t, code, says)
	require.Contains(t, says, "Nothing was changed")
	var shown kontrol.Resource
	require.NoError(t, yaml.Unmarshal([]byte(preview), &shown))
	require.Error(t, c.Client.Get(t.Context(), ctrl.ObjectKey{Name: shown.Name}, &kontrol.Resource{}), "it is only shown")

	out, _, code := adopt(AdoptOptions{Object: "ConfigMap/settings", Yes: true})
	require.Zero(t, code)
	require.Equal(t, "resource edge-shop-configmap-settings adopts ConfigMap/shop/settings of cluster edge\n", out)
	r, err := c.getResource(t.Context(), "edge-shop-configmap-settings")
	require.NoError(t, err)
	require.JSONEq(t,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","namespace":"shop","labels":{"app":"a"}},"data":{"color":"pink"}}`, string(r.Spec.Template.Raw))
	require.Equal(t, kontrol.ModeReport, r.Spec.Mode)
	require.Equal(t, kontrol.DeletionOrphan, r.Spec.DeletionPolicy)
	kontrol.Default(r)
	require.Empty(t, kontrol.Validate(r))

	preview, _, _ = adopt(AdoptOptions{Object: "secret/key"})
	require.NotContains(t, preview, "aHVzaA", "values of Secrets are not shown")
}

// TestWrittenFields checks which fields count as written by users, by managed fields and the last-applied
// annotation.
func TestWrittenFields(t *testing.T) {
	object := func(metadata string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: u, resourceVersion: "7", generation: 2, labels: {app: web}, `+metadata+`}
spec:
  replicas: 3
  revisionHistoryLimit: 10
  template:
    spec:
      terminationGracePeriodSeconds: 30
      containers:
      - {name: web, image: web:1, imagePullPolicy: Always, args: [a, b]}
      - {name: sidecar, image: other:1}
status: {replicas: 3}`), &o.Object))
		return o
	}
	applied := `{manager: argo, operation: Apply, apiVersion: apps/v1, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:image": {}, "f:args": {}}}}}}}}`
	controller :=
		`{manager: kube-controller-manager, operation: Update, apiVersion: apps/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:revisionHistoryLimit": {}}}}`
	updated := `{manager: kubectl-edit, operation: Update, apiVersion: apps/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"sidecar\"}": {"f:image": {}}}}}}}}`
	for name, test := range map[string]struct{ metadata, want string }{
		"what was applied": {`managedFields: [` + applied + `,` + controller + `,` + updated + `]`,
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","labels":{"app":"web"}},"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"web","image":"web:1","args":["a","b"]}]}}}}`},
		"what was updated by people": {`managedFields: [` + controller + `,` + updated + `]`,
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop"},"spec":{"template":{"spec":{"containers":[{"name":"sidecar","image":"other:1"}]}}}}`},
		"what kubectl apply recorded": {
			`managedFields: [` + updated +
				`], annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","annotations":{}},"spec":{"replicas":2}}'}`,
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop"},"spec":{"replicas":2}}`,
		},
	} {
		got, err := object(test.metadata).MarshalJSON()
		require.NoError(t, err)
		var live unstructured.Unstructured
		require.NoError(t, live.UnmarshalJSON(got))
		object, applied := written(&live)
		require.Equal(t, name != "what was updated by people", applied, name)
		raw, err := (&unstructured.Unstructured{Object: object}).MarshalJSON()
		require.NoError(t, err)
		require.JSONEq(t, test.want, string(raw), name)
	}
}

func TestDefaultsAreNotAdopted(t *testing.T) {
	asked := 0
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(_ context.Context, _ ctrl.WithWatch, o ctrl.Object, opts ...ctrl.CreateOption) error {
			require.Equal(t, []string{metav1.DryRunAll}, (&ctrl.CreateOptions{}).ApplyOptions(opts).DryRun, "nothing is changed")
			require.Equal(t, "web-adopt", o.GetName())
			asked++
			spec, _ := o.(*unstructured.Unstructured).Object["spec"].(map[string]any)
			list, _ := spec["containers"].([]any)
			if len(list) == 0 || list[0].(map[string]any)["image"] == nil {
				return errors.New("spec.containers[0].image: required")
			}
			spec["clusterIP"] = strconv.Itoa(asked)
			for k, v := range map[string]any{"policy": "Always", "limits": map[string]any{}} {
				if spec[k] == nil {
					spec[k] = v
				}
			}
			if container := list[0].(map[string]any); container["pull"] == nil {
				container["pull"] = "IfNotPresent"
			}
			return nil
		},
	})
	object := func(spec string) (o map[string]any) {
		require.NoError(t, yaml.Unmarshal([]byte("{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: "+spec+"}"), &o))
		return o
	}
	full := object(`{policy: Always, limits: {}, host: a, containers: [{image: i, pull: IfNotPresent}, {image: j, pull: Never}]}`)
	require.Equal(t, object(`{host: a, containers: [{image: i}, {image: j, pull: Never}]}`),
		withoutDefaults(t.Context(), c, full))
	require.Equal(t, object(`{policy: Never, containers: [{image: i, pull: Never}]}`),
		withoutDefaults(t.Context(), c, object(`{policy: Never, containers: [{image: i, pull: Never}]}`)))
	require.Equal(t, object(`{policy: Always}`), withoutDefaults(t.Context(), c, object(`{policy: Always}`)),
		"the cluster refuses it")

	asked = 0
	large := object(`{containers: [{image: i}]}`)
	for i := range 2 * maxProbes {
		large["spec"].(map[string]any)[strconv.Itoa(i)] = "x"
	}
	require.Equal(t, large, withoutDefaults(t.Context(), c, large))
	require.Equal(t, maxProbes, asked)
}

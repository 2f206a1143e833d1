//go:build generated

// Package use uses a typed client generated from the server's OpenAPI documents. The build overlays the generated
// packages core and apps on this module.
package use

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-dev/coracle/test/clients/foreign/apps"
	"github.com/coracle-dev/coracle/test/clients/foreign/core"
)

const (
	namespace = "default"
	asJSON    = "application/json"
)

func clients(t *testing.T) (*core.ClientWithResponses, *apps.ClientWithResponses) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	require.NoError(t, err)
	h, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	c, err := core.NewClientWithResponses(config.Host, core.WithHTTPClient(h))
	require.NoError(t, err)
	a, err := apps.NewClientWithResponses(config.Host, apps.WithHTTPClient(h))
	require.NoError(t, err)
	return c, a
}

func body(t *testing.T, o any) io.Reader {
	t.Helper()
	raw, err := json.Marshal(o)
	require.NoError(t, err)
	return bytes.NewReader(raw)
}

func meta(name string) *core.IoK8sApimachineryPkgApisMetaV1ObjectMeta {
	return &core.IoK8sApimachineryPkgApisMetaV1ObjectMeta{Name: &name, Labels: &map[string]string{"app": "generated"}}
}

// failed checks that a response is a Status with this code and reason.
func failed(t *testing.T, raw []byte, code int32, reason string) {
	t.Helper()
	var s core.IoK8sApimachineryPkgApisMetaV1Status
	require.NoError(t, json.Unmarshal(raw, &s), "%s", raw)
	require.Equal(t, "Failure", *s.Status)
	require.Equal(t, code, *s.Code, "%s", raw)
	require.Equal(t, reason, *s.Reason)
}

func TestConfigMaps(t *testing.T) {
	c, _ := clients(t)
	ctx := t.Context()
	manager, strict, all := "generated-client", "Strict", "All"

	var version string
	for _, name := range []string{"a", "b", "c"} {
		made, err := c.CreateCoreV1NamespacedConfigMapWithBodyWithResponse(ctx, namespace,
			&core.CreateCoreV1NamespacedConfigMapParams{FieldManager: &manager, FieldValidation: &strict},
			asJSON, body(t, core.IoK8sApiCoreV1ConfigMap{Metadata: meta(name), Data: &map[string]string{"k": name}}))
		require.NoError(t, err)
		require.NotNil(t, made.JSON201, "%s", made.Body)
		require.Equal(t, manager, *(*made.JSON201.Metadata.ManagedFields)[0].Manager)
		version = *made.JSON201.Metadata.ResourceVersion
	}
	again, err := c.CreateCoreV1NamespacedConfigMapWithBodyWithResponse(ctx, namespace, nil, asJSON,
		body(t, core.IoK8sApiCoreV1ConfigMap{Metadata: meta("a")}))
	require.NoError(t, err)
	failed(t, again.Body, http.StatusConflict, "AlreadyExists")
	unknown, err := c.CreateCoreV1NamespacedConfigMapWithBodyWithResponse(ctx, namespace,
		&core.CreateCoreV1NamespacedConfigMapParams{FieldValidation: &strict},
		asJSON, strings.NewReader(`{"metadata":{"name":"d"},"date":{}}`))
	require.NoError(t, err)
	failed(t, unknown.Body, http.StatusBadRequest, "BadRequest")

	// List by label in pages of two.
	selector, limit := "app=generated", 2
	page, err := c.ListCoreV1NamespacedConfigMapWithResponse(ctx, namespace, &core.ListCoreV1NamespacedConfigMapParams{
		LabelSelector: &selector, Limit: &limit,
	})
	require.NoError(t, err)
	require.NotNil(t, page.JSON200, "%s", page.Body)
	require.Equal(t, "ConfigMapList", *page.JSON200.Kind)
	require.Len(t, page.JSON200.Items, 2)
	var first core.IoK8sApiCoreV1ConfigMap = page.JSON200.Items[0]
	require.Equal(t, "a", (*first.Data)["k"])
	page, err = c.ListCoreV1NamespacedConfigMapWithResponse(ctx, namespace, &core.ListCoreV1NamespacedConfigMapParams{
		LabelSelector: &selector,
		Limit:         &limit,
		Continue:      page.JSON200.Metadata.Continue,
	})
	require.NoError(t, err)
	require.Len(t, page.JSON200.Items, 1)
	require.Equal(t, "c", *page.JSON200.Items[0].Metadata.Name)
	field := "metadata.name=b"
	everywhere, err := c.ListCoreV1ConfigMapForAllNamespacesWithResponse(ctx,
		&core.ListCoreV1ConfigMapForAllNamespacesParams{FieldSelector: &field})
	require.NoError(t, err)
	require.Len(t, everywhere.JSON200.Items, 1)

	merged, err := c.PatchCoreV1NamespacedConfigMapWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, namespace, "a",
		nil, map[string]any{"data": map[string]any{"k": nil, "m": "1"}})
	require.NoError(t, err)
	require.NotNil(t, merged.JSON200, "%s", merged.Body)
	require.Equal(t, map[string]string{"m": "1"}, *merged.JSON200.Data)
	dry, err := c.PatchCoreV1NamespacedConfigMapWithApplicationStrategicMergePatchPlusJSONBodyWithResponse(ctx, namespace,
		"a",
		&core.PatchCoreV1NamespacedConfigMapParams{DryRun: &all}, map[string]any{"data": map[string]any{"n": "2"}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"m": "1", "n": "2"}, *dry.JSON200.Data)
	force := true
	applied, err := c.PatchCoreV1NamespacedConfigMapWithBodyWithResponse(ctx, namespace, "applied",
		&core.PatchCoreV1NamespacedConfigMapParams{FieldManager: &manager, Force: &force},
		"application/apply-patch+yaml",
		strings.NewReader("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {k: v}\n"))
	require.NoError(t, err)
	require.NotNil(t, applied.JSON201, "%s", applied.Body)

	read, err := c.ReadCoreV1NamespacedConfigMapWithResponse(ctx, namespace, "a", nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"m": "1"}, *read.JSON200.Data)
	stale := *read.JSON200
	old := version
	stale.Metadata.ResourceVersion = &old
	replaced, err := c.ReplaceCoreV1NamespacedConfigMapWithBodyWithResponse(ctx, namespace, "a", nil, asJSON,
		body(t, stale))
	require.NoError(t, err)
	failed(t, replaced.Body, http.StatusConflict, "Conflict")

	gone, err := c.DeleteCoreV1NamespacedConfigMapWithBodyWithResponse(ctx, namespace, "a", nil, asJSON,
		body(t, core.IoK8sApimachineryPkgApisMetaV1DeleteOptions{
			Preconditions: &core.IoK8sApimachineryPkgApisMetaV1Preconditions{Uid: read.JSON200.Metadata.Uid}}))
	require.NoError(t, err)
	require.NotNil(t, gone.JSON200, "%s", gone.Body)
	require.Equal(t, "Success", *gone.JSON200.Status)
	missing, err := c.ReadCoreV1NamespacedConfigMapWithResponse(ctx, namespace, "a", nil)
	require.NoError(t, err)
	require.Nil(t, missing.JSON200)
	failed(t, missing.Body, http.StatusNotFound, "NotFound")

	// Watch the changes since the last creation.
	watch, bookmarks := true, true
	stream, err := c.ClientInterface.ListCoreV1NamespacedConfigMap(ctx, namespace,
		&core.ListCoreV1NamespacedConfigMapParams{
			LabelSelector: &selector, Watch: &watch, AllowWatchBookmarks: &bookmarks, ResourceVersion: &version})
	require.NoError(t, err)
	defer stream.Body.Close()
	events := json.NewDecoder(stream.Body)
	for _, want := range []string{"MODIFIED", "DELETED"} {
		var e core.IoK8sApimachineryPkgApisMetaV1WatchEvent
		require.NoError(t, events.Decode(&e))
		require.Equal(t, want, e.Type)
		require.Equal(t, "a", e.Object["metadata"].(map[string]any)["name"])
	}

	collection, err := c.DeleteCoreV1CollectionNamespacedConfigMapWithBodyWithResponse(ctx, namespace,
		&core.DeleteCoreV1CollectionNamespacedConfigMapParams{LabelSelector: &selector}, asJSON, nil)
	require.NoError(t, err)
	require.NotNil(t, collection.JSON200, "%s", collection.Body)
	page, err = c.ListCoreV1NamespacedConfigMapWithResponse(ctx, namespace, &core.ListCoreV1NamespacedConfigMapParams{
		LabelSelector: &selector,
	})
	require.NoError(t, err)
	require.Empty(t, page.JSON200.Items)
}

// Union types: quantities, and ports that are numbers or names.
func TestUnions(t *testing.T) {
	c, _ := clients(t)
	ctx := t.Context()
	var number, name core.IoK8sApimachineryPkgUtilIntstrIntOrString
	require.NoError(t, number.FromIoK8sApimachineryPkgUtilIntstrIntOrString0(8080))
	require.NoError(t, name.FromIoK8sApimachineryPkgUtilIntstrIntOrString1("metrics"))
	one, two := "one", "two"
	service, err := c.CreateCoreV1NamespacedServiceWithBodyWithResponse(ctx, namespace, nil, asJSON,
		body(t, core.IoK8sApiCoreV1Service{Metadata: meta("ports"), Spec: &core.IoK8sApiCoreV1ServiceSpec{
			Ports: &[]core.IoK8sApiCoreV1ServicePort{
				{Name: &one, Port: 80, TargetPort: &number}, {Name: &two, Port: 81, TargetPort: &name},
			}}}))
	require.NoError(t, err)
	require.NotNil(t, service.JSON201, "%s", service.Body)
	ports := *service.JSON201.Spec.Ports
	n, err := ports[0].TargetPort.AsIoK8sApimachineryPkgUtilIntstrIntOrString0()
	require.NoError(t, err)
	require.Equal(t, 8080, n)
	s, err := ports[1].TargetPort.AsIoK8sApimachineryPkgUtilIntstrIntOrString1()
	require.NoError(t, err)
	require.Equal(t, "metrics", s)

	var cpu core.IoK8sApimachineryPkgApiResourceQuantity
	require.NoError(t, cpu.FromIoK8sApimachineryPkgApiResourceQuantity1(0.5))
	image := "busybox:1.36"
	pod, err := c.CreateCoreV1NamespacedPodWithBodyWithResponse(ctx, namespace, nil, asJSON,
		body(t, core.IoK8sApiCoreV1Pod{Metadata: meta("waits"), Spec: &core.IoK8sApiCoreV1PodSpec{
			NodeSelector: &map[string]string{"no": "where"},
			Containers: []core.IoK8sApiCoreV1Container{
				{Name: "main", Image: &image, Resources: &core.IoK8sApiCoreV1ResourceRequirements{
					Requests: &map[string]core.IoK8sApimachineryPkgApiResourceQuantity{"cpu": cpu}}},
			}}}))
	require.NoError(t, err)
	require.NotNil(t, pod.JSON201, "%s", pod.Body)
	cpu = (*(*pod.JSON201.Spec.Containers[0].Resources).Requests)["cpu"]
	text, err := cpu.AsIoK8sApimachineryPkgApiResourceQuantity0()
	require.NoError(t, err)
	require.Equal(t, "500m", text)
	nodes, err := c.ListCoreV1NodeWithResponse(ctx, nil)
	require.NoError(t, err)
	require.Len(t, nodes.JSON200.Items, 1)
	var node core.IoK8sApiCoreV1Node = nodes.JSON200.Items[0]
	require.NotEmpty(t, (*node.Status).Capacity)
	selector := "status.phase=Pending"
	pods, err := c.ListCoreV1PodForAllNamespacesWithResponse(ctx, &core.ListCoreV1PodForAllNamespacesParams{
		FieldSelector: &selector,
	})
	require.NoError(t, err)
	require.Equal(t, "waits", *pods.JSON200.Items[0].Metadata.Name)
}

func TestDeployments(t *testing.T) {
	_, a := clients(t)
	ctx := t.Context()
	name, image, replicas := "web", "busybox:1.36", int32(0)
	labels := map[string]string{"app": "web"}
	made, err := a.CreateAppsV1NamespacedDeploymentWithBodyWithResponse(ctx, namespace, nil, asJSON,
		body(t, apps.IoK8sApiAppsV1Deployment{
			Metadata: &apps.IoK8sApimachineryPkgApisMetaV1ObjectMeta{Name: &name, Labels: &labels},
			Spec: apps.IoK8sApiAppsV1DeploymentSpec{
				Replicas: &replicas, Selector: apps.IoK8sApimachineryPkgApisMetaV1LabelSelector{MatchLabels: &labels},
				Template: apps.IoK8sApiCoreV1PodTemplateSpec{
					Metadata: &apps.IoK8sApimachineryPkgApisMetaV1ObjectMeta{Labels: &labels},
					Spec:     &apps.IoK8sApiCoreV1PodSpec{Containers: []apps.IoK8sApiCoreV1Container{{Name: "main", Image: &image}}},
				},
			},
		}))
	require.NoError(t, err)
	require.NotNil(t, made.JSON201, "%s", made.Body)
	list, err := a.ListAppsV1NamespacedDeploymentWithResponse(ctx, namespace, nil)
	require.NoError(t, err)
	require.Len(t, list.JSON200.Items, 1)
	var one apps.IoK8sApiAppsV1Deployment = list.JSON200.Items[0]
	require.Equal(t, image, *one.Spec.Template.Spec.Containers[0].Image)

	scale, err := a.ReadAppsV1NamespacedDeploymentScaleWithResponse(ctx, namespace, name, nil)
	require.NoError(t, err)
	require.NotNil(t, scale.JSON200, "%s", scale.Body)
	replicas = 1
	scale.JSON200.Spec.Replicas = &replicas
	scale.JSON200.Metadata.ResourceVersion = nil // the deployment controller writes too
	scaled, err := a.ReplaceAppsV1NamespacedDeploymentScaleWithBodyWithResponse(ctx, namespace, name, nil, asJSON,
		body(t, scale.JSON200))
	require.NoError(t, err)
	require.NotNil(t, scaled.JSON200, "%s", scaled.Body)
	status, err := a.ReadAppsV1NamespacedDeploymentStatusWithResponse(ctx, namespace, name, nil)
	require.NoError(t, err)
	require.Equal(t, int32(1), *status.JSON200.Spec.Replicas)

	policy := "Background"
	gone, err := a.DeleteAppsV1NamespacedDeploymentWithBodyWithResponse(ctx, namespace, name,
		&apps.DeleteAppsV1NamespacedDeploymentParams{PropagationPolicy: &policy}, asJSON, nil)
	require.NoError(t, err)
	require.NotNil(t, gone.JSON200, "%s", gone.Body)
}

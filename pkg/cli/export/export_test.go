package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/coracle-dev/coracle/pkg/cli/export"
	"github.com/coracle-dev/coracle/pkg/testing/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exported returns the export of a cluster as one YAML stream.
func exported(t *testing.T, c *testcluster.Cluster, o export.Options) string {
	t.Helper()
	var b bytes.Buffer
	out := export.ToWriter(&b)
	_, err := export.Export(t.Context(), c.REST(), o, out)
	require.NoError(t, err)
	require.NoError(t, errors.Join(out.Commit(), out.Close()))
	return b.String()
}

func apply(t *testing.T, c *testcluster.Cluster, manifests string) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(c.REST())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(
		discovery.NewDiscoveryClientForConfigOrDie(c.REST())))
	documents := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := documents.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		gvk := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		require.NoError(t, err, "%s", gvk)
		_, err = client.Resource(mapping.Resource).Namespace(o.GetNamespace()).Apply(t.Context(), o.GetName(), o,
			metav1.ApplyOptions{FieldManager: "test", Force: true})
		require.NoError(t, err, "%s %s/%s", gvk, o.GetNamespace(), o.GetName())
		if gvk.Kind == "CustomResourceDefinition" {
			established(t, client, mapping.Resource, o.GetName())
			mapper.Reset()
		}
	}
}

func established(t *testing.T, client dynamic.Interface, resource schema.GroupVersionResource, name string) {
	t.Helper()
	w, err := client.Resource(resource).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		conditions, _, _ := unstructured.NestedSlice(e.Object.(*unstructured.Unstructured).Object, "status", "conditions")
		if slices.ContainsFunc(conditions, func(c any) bool {
			return c.(map[string]any)["type"] == "Established" && c.(map[string]any)["status"] == "True"
		}) {
			return
		}
	}
	t.Fatalf("%s was not established", name)
}

func TestWhatIsExportedMakesTheSameCluster(t *testing.T) {
	t.Parallel()
	all := export.Options{Secrets: true}
	first, second := testcluster.New(t, testcluster.Config{}), testcluster.New(t, testcluster.Config{})
	manifests, err := os.ReadFile("testdata/cluster.yaml")
	require.NoError(t, err)
	var many strings.Builder // more than a page
	for i := range 150 {
		fmt.Fprintf(&many,
			"---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: many-%03d, namespace: shop}, data: {number: \"%d\"}}\n", i,
			i)
	}
	apply(t, first, string(manifests)+many.String())

	text := exported(t, first, all)
	for _, never := range []string{
		"uid", "resourceVersion", "managedFields", "creationTimestamp", "generation:", "clusterIP: 1", "\nstatus:\n",
		"ownerReferences", "kube-root-ca", "owned-by-a-controller", "taken-by-a-driver", "join-token", "null",
	} {
		require.NotContains(t, text, never)
	}
	require.Contains(t, text, "kind: Boat", "custom resources")
	require.Contains(t, text, "snapshotHandle: from-the-driver")
	require.Contains(t, text, "color: blue")
	require.Contains(t, text, "status: kept", "the field of a kind without a status of its own")
	require.Equal(t, 150, strings.Count(text, "name: many-"))
	require.Equal(t, text, exported(t, first, all), "the same each time")

	apply(t, second, text)
	require.Equal(t, text, exported(t, second, all))
}

func TestAnEmptyClusterHasNothingToExport(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{Parts: testcluster.Reconcilers, FakeNodes: 1})
	require.Empty(t, exported(t, c, export.Options{Secrets: true}))
}

func TestSecretsNeedTheOption(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{})
	apply(t, c, `
{apiVersion: v1, kind: Secret, metadata: {name: password, namespace: default}, stringData: {password: swordfish}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: default}, data: {color: blue}}
`)
	text := exported(t, c, export.Options{})
	require.NotContains(t, text, "password")
	require.Contains(t, text, "settings")
}

const shop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: prices, namespace: shop}, data: {tea: "2"}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: wide}}
---`

func TestOneNamespace(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{})
	apply(t, c, shop+`
{apiVersion: v1, kind: ConfigMap, metadata: {name: elsewhere, namespace: default}}
`)
	require.Equal(t, `apiVersion: v1
kind: Namespace
metadata:
  name: shop
---
apiVersion: v1
data:
  tea: "2"
kind: ConfigMap
metadata:
  name: prices
  namespace: shop
`, exported(t, c, export.Options{Namespace: "shop"}))

	_, err := export.Export(t.Context(), c.REST(), export.Options{Namespace: "shoop"}, export.ToWriter(io.Discard))
	require.ErrorContains(t, err, `there is no namespace "shoop": `)
}

func TestOneWhoMayNotReadIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{})
	config, err := c.As("alice")
	require.NoError(t, err)
	_, err = export.Export(t.Context(), config, export.Options{}, export.ToWriter(io.Discard))
	require.ErrorContains(t, err, "export with the kubeconfig of an administrator")
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{})
	apply(t, c, shop+`
{apiVersion: v1, kind: ConfigMap, metadata: {name: names, namespace: shop}}
`)
	parent := t.TempDir()
	dir := filepath.Join(parent, "cluster")
	to := func(ctx context.Context, commit bool) error {
		out, err := export.ToDirectory(dir)
		if err != nil {
			return err
		}
		if _, err = export.Export(ctx, c.REST(), export.Options{}, out); err == nil && commit {
			err = out.Commit()
		}
		return errors.Join(err, out.Close())
	}
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, to(ended, true), context.Canceled)
	require.NoError(t, to(t.Context(), false))
	require.Empty(t, files(t, parent), "nothing is left of what was not committed")

	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, to(t.Context(), true))
	written := files(t, parent)
	require.Equal(t, []string{
		"cluster/2-cluster/00-namespaces.yaml", "cluster/2-cluster/20-clusterroles.rbac.authorization.k8s.io.yaml",
		"cluster/3-namespaces/shop/10-configmaps.yaml",
	}, slices.Sorted(maps.Keys(written)))
	require.Equal(t, 2, strings.Count(written["cluster/3-namespaces/shop/10-configmaps.yaml"], "kind: ConfigMap"))
	require.ErrorContains(t, to(t.Context(), true), "is not empty: name a directory that does not exist")
}

// TestDirectoriesThatCannotBeReplaced checks that such directories are rejected before anything is read, and that a
// relative directory is created in the current one.
func TestDirectoriesThatCannotBeReplaced(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := export.ToDirectory(".")
	require.ErrorContains(t, err, "name a directory in it")
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, entries)
	require.NoError(t, os.Mkdir("empty", 0o755))
	out, err := export.ToDirectory("empty")
	require.NoError(t, err)
	require.NoError(t, out.Commit())
	require.NoError(t, out.Close())
	require.DirExists(t, "empty")
}

func TestFileIsReplacedWhenTheExportIsWhole(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Config{})
	apply(t, c, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
	dir := t.TempDir()
	file := filepath.Join(dir, "cluster.yaml")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o644))
	for _, commit := range []bool{false, true} {
		out, err := export.ToFile(file)
		require.NoError(t, err)
		_, err = export.Export(t.Context(), c.REST(), export.Options{}, out)
		require.NoError(t, err)
		want := map[string]string{"cluster.yaml": "old"}
		if commit {
			require.NoError(t, out.Commit())
			want["cluster.yaml"] = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n"
		}
		require.NoError(t, out.Close())
		require.Equal(t, want, files(t, dir))
	}
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		found[name] = string(data)
		return err
	}))
	return found
}

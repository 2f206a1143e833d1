package commands

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
)

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

const shopConfig = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: prices, namespace: shop}\ndata: {tea: \"2\"}\n"

// TestKontrolPush makes a Bundle from a directory, inline or through a registry. A dry run prints the changes
// without applying them.
func TestKontrolPush(t *testing.T) {
	c := kontrolCluster(t, nil, edge())
	dir := filepath.Join(t.TempDir(), "Shop")
	writeFile(t, dir, "a/prices.yaml", shopConfig)
	push := func(o PushOptions) (string, string, int) {
		o.Dir = dir
		return ran(t, func(at command.Terminal) error { return c.Push(t.Context(), o, at) })
	}
	_, text, _ := push(PushOptions{})
	require.Contains(t, text, "there is no bundle shop yet: choose its clusters")
	_, text, _ = push(PushOptions{Cluster: "a", Selector: "b=c"})
	require.Contains(t, text, "give either --cluster or --selector")
	out, text, code := push(PushOptions{Selector: "env=prod", DryRun: true})
	require.Zero(t, code, text)
	require.Contains(t, out, "+  tea: \"2\"")
	require.Contains(t, text, "bundle shop: 1 object in 1 wave (dry run)")
	require.Error(t, c.Client.Get(t.Context(), ctrl.ObjectKey{Name: "shop"}, &kontrol.Bundle{}))

	out, _, _ = push(PushOptions{Selector: "env=prod"})
	require.Equal(t, "bundle shop created: 1 object in 1 wave\n", out)
	_, text, code = push(PushOptions{Name: "early", Selector: "env=later"})
	require.Zero(t, code)
	require.Contains(t, text, "Note: no cluster has the labels env=later: the objects are brought to it when it is added")
	b, err := c.getBundle(t.Context(), "shop")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"env": "prod"}, b.Spec.ClusterSelector.MatchLabels)
	require.Contains(t, b.Spec.Source.Inline, "# a/prices.yaml\n")

	for o, want := range map[PushOptions]string{
		{Cluster: "typo"}: "there is no cluster typo: the objects of bundle shop would be deleted from " +
			"clusters with labels env=prod; `coracle kontrol clusters` lists",
		{Selector: "enf=prod"}: "no cluster has the labels enf=prod: the objects of bundle shop would be deleted",
	} {
		_, text, code = push(o)
		require.NotZero(t, code)
		require.Contains(t, text, want)
	}
	_, text, _ = push(PushOptions{Cluster: "edge", DryRun: true})
	require.Contains(t, text,
		"from clusters with labels env=prod to edge: its objects are deleted from clusters that it leaves")
	_, text, _ = push(PushOptions{Selector: "env=prod", DryRun: true})
	require.NotContains(t, text, "are deleted")

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/shop:v1"
	_, text, code = push(PushOptions{Artifact: ref})
	require.Zero(t, code, text)
	b, err = c.getBundle(t.Context(), "shop")
	require.NoError(t, err)
	require.Empty(t, b.Spec.Source.Inline)
	require.Regexp(t, "^"+ref+"@sha256:[0-9a-f]{64}$", b.Spec.Source.Artifact.Reference)
	require.Equal(t, map[string]string{"env": "prod"}, b.Spec.ClusterSelector.MatchLabels,
		"what was not asked to change is as before")

	writeFile(t, dir, "b.yaml", shopConfig)
	_, text, _ = push(PushOptions{})
	require.Contains(t, text, "b.yaml: document 1: ConfigMap/shop/prices is in a/prices.yaml already")
	require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link.yaml")))
	_, text, code = push(PushOptions{})
	require.Zero(t, code, text)
	writeFile(t, dir, "big.yaml",
		strings.Replace(shopConfig, "prices", "big", 1)+strings.Repeat("# padding\n", kontrol.MaxInline/10))
	_, text, _ = push(PushOptions{})
	require.Contains(t, text, "push them to a registry with --artifact")
}

// hubWithWidgets returns a client whose cluster serves the namespaced kind Widget.
func hubWithWidgets() ctrl.Client {
	version := schema.GroupVersion{Group: "x.dev", Version: "v1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{version})
	mapper.Add(version.WithKind("Widget"), meta.RESTScopeNamespace)
	return fake.NewClientBuilder().WithRESTMapper(mapper).Build()
}

// TestKontrolPushNamespace pushes objects that name no namespace: without --namespace it is an error that names the
// file and the flag, before anything is stored. The flag leaves alone the objects that name one or need none.
func TestKontrolPushNamespace(t *testing.T) {
	c := kontrolCluster(t, hubWithWidgets(), edge())
	dir := filepath.Join(t.TempDir(), "shop")
	const untouched = "# a comment\n" + shopConfig
	writeFile(t, dir, "a.yaml", untouched)
	writeFile(t, dir, "b.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n---\n"+
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {n: \"1\"}}]\n")
	writeFile(t, dir, "c.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}`)
	writeFile(t, dir, "d.yaml", "apiVersion: x.dev/v1\nkind: Widget\nmetadata: {name: w}\n---\n"+
		"apiVersion: x.dev/v1\nkind: OnlyTheEdgeKnows\nmetadata: {name: w}\n")
	push := func(o PushOptions) (string, string, int) {
		o.Dir, o.Cluster = dir, "edge"
		return ran(t, func(at command.Terminal) error { return c.Push(t.Context(), o, at) })
	}
	_, text, code := push(PushOptions{})
	require.NotZero(t, code)
	require.Contains(t, text, "b.yaml: document 2: item 0: ConfigMap/m has no namespace: set metadata.namespace, or push "+
		"the files with --namespace")
	require.Error(t, c.Client.Get(t.Context(), ctrl.ObjectKey{Name: "shop"}, &kontrol.Bundle{}))

	_, text, code = push(PushOptions{Namespace: "web"})
	require.Zero(t, code, text)
	b, err := c.getBundle(t.Context(), "shop")
	require.NoError(t, err)
	require.Contains(t, b.Spec.Source.Inline, untouched)
	objects, err := bundle.Parse([]bundle.File{{Name: "inline", Data: []byte(b.Spec.Source.Inline)}})
	require.NoError(t, err)
	var names []string
	for i := range objects {
		names = append(names, objects[i].Target.String())
	}
	require.ElementsMatch(t, []string{"ConfigMap/shop/prices", "Namespace/web", "ConfigMap/web/m", "Service/web/s",
		"Widget/web/w", "OnlyTheEdgeKnows/w"}, names)
	for i := range objects {
		if objects[i].Kind == "Service" {
			require.Contains(t, string(objects[i].JSON), `"ports":[{"port":80}]`)
		}
	}
}

// TestKontrolPushKindOfTheHub checks the scope of a kind that only the hub knows.
func TestKontrolPushKindOfTheHub(t *testing.T) {
	c := kontrolCluster(t, hubWithWidgets(), edge())
	dir := t.TempDir()
	writeFile(t, dir, "w.yaml", "apiVersion: x.dev/v1\nkind: Widget\nmetadata: {name: w}\n")
	_, text, code := ran(t, func(at command.Terminal) error {
		return c.Push(t.Context(), PushOptions{Dir: dir, Name: "w", Cluster: "edge"}, at)
	})
	require.NotZero(t, code)
	require.Contains(t, text, "w.yaml: Widget/w has no namespace: set metadata.namespace")
}

// TestKontrolBundles checks the commands get, describe and approve for Bundles.
func TestKontrolBundles(t *testing.T) {
	b := &kontrol.Bundle{
		Spec: kontrol.BundleSpec{
			ClusterName: "edge",
			Source:      kontrol.BundleSource{Inline: shopConfig},
			Rollout:     kontrol.Rollout{Approval: kontrol.ApprovalManual},
		},
	}
	b.Name, b.UID, b.Generation = "shop", "u", 1
	kontrol.DefaultBundle(b)
	wave := int32(1)
	b.Status = kontrol.BundleStatus{
		ObservedGeneration: 1, Phase: kontrol.BundleWaiting, Message: "it waits", Content: "sha256:1", Objects: 1,
		Clusters: kontrol.BundleCounts{Total: 1},
		Waves:    []kontrol.BundleWave{{Wave: 0, Objects: 1, Clusters: 1}, {Wave: 1, Objects: 2}},
		Targets:  []kontrol.BundleTarget{{Name: "edge", Phase: kontrol.TargetProgressing, Wave: &wave, Message: "soon"}},
	}
	c := kontrolCluster(t, nil, b, settings(kontrol.StateDrifted), edge())
	out, _, _ := ran(t, func(at command.Terminal) error { return c.Get(t.Context(), KontrolOptions{}, at) })
	require.Regexp(t, `(?m)^shop +1 +0/1 +Waiting +1/2 +inline +\S+ +it waits$`, out)
	require.Contains(t, out, "ConfigMap/shop/settings")
	out, _, _ = ran(t, func(at command.Terminal) error {
		return c.Get(t.Context(), KontrolOptions{Names: []string{"bundle/shop"}, Output: "json"}, at)
	})
	require.Contains(t, out, `"kind": "Bundle"`)
	_, text, code := ran(t, func(at command.Terminal) error {
		return c.Get(t.Context(), KontrolOptions{Names: []string{"bundle/none"}}, at)
	})
	require.Equal(t, 1, code)
	require.Contains(t, text, "there is no bundle none")
	out, _, _ = ran(t, func(at command.Terminal) error { return c.Describe(t.Context(), "bundle/shop", at.Out) })
	require.Regexp(t, `(?m)^1 +2 +0/1$`, out)
	require.NotContains(t, out, "Order", "there is one cluster")
	label := func(value string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"tier": value}}
	}
	b.Spec.ClusterSelector = new(label("any"))
	require.Equal(t, "clusters by name; on each cluster one wave after the other", orderOf(b))
	b.Spec.Rollout.Order = []metav1.LabelSelector{label("test"), label("stage")}
	require.Equal(t, "clusters with tier=test, then with tier=stage, then the others, each group by name; "+
		"on each cluster one wave after the other", orderOf(b))
	require.Regexp(t, `(?m)^edge +Progressing +1 +- +soon$`, out)
	approve := func(dry bool) (string, string, int) {
		return ran(t, func(at command.Terminal) error { return c.Approve(t.Context(), "bundle/shop", dry, at) })
	}
	out, text, _ = approve(false)
	require.Equal(t, "bundle shop: content sha256:1 approved\n", out, text)
	out, _, _ = approve(false)
	require.Contains(t, out, "is approved already")
	_, text, _ = ran(t, func(at command.Terminal) error { return c.Approve(t.Context(), "shop", false, at) })
	require.Contains(t, text, "there is no resource shop")
	_, text, code = ran(t, func(at command.Terminal) error {
		return c.Wait(t.Context(), KontrolOptions{Names: []string{"bundle/shop"}}, "nonsense", 1, at)
	})
	require.Equal(t, 2, code)
	require.Contains(t, text, "is not a phase of a bundle")
}

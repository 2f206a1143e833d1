package kontrol_test

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/artifact"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func bundleOf(value string, extra string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first, namespace: default}\ndata: {a: "+
		"\"%s\"}\n---\n"+
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: second, namespace: default, annotations: {kontrol/wave: "+
		"\"1\"}}\ndata: {a: \"%s\"}\n%s", value, value, extra)
}

func (c *cluster) bundleIn(name string, p kontrol.BundlePhase) *kontrol.Bundle {
	c.T.Helper()
	return controlplane.Until(c, &kontrol.BundleList{}, "", name, func(b *kontrol.Bundle) bool {
		return b.Status.Phase == p && b.Status.ObservedGeneration == b.Generation
	})
}

// TestKontrolBundle checks that a Bundle's objects reach the clusters in order and in waves, that an object which a
// cluster refuses stops the rollout, and pausing, approval and deletion.
func TestKontrolBundle(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	other := c.beside("there")
	c.Make(&kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"name": "here"}},
		Spec:       kontrol.ClusterSpec{Local: true},
	})
	for _, name := range []string{"here", "there"} {
		controlplane.Until(c, &kontrol.ClusterList{}, "", name, func(k *kontrol.Cluster) bool {
			return len(k.Status.Conditions) > 0 && k.Status.Conditions[0].Status == metav1.ConditionTrue
		})
	}
	b := &kontrol.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: kontrol.BundleSpec{
		Source: kontrol.BundleSource{Inline: bundleOf("1", "")},
		ClusterSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: metav1.LabelSelectorOpExists}},
		},
		Overrides: []kontrol.BundleOverride{
			{
				Name: "second",
				Override: kontrol.Override{
					Patch: []kontrol.PatchOperation{{Op: "add", Path: "/data/on", ValueFrom: &kontrol.ValueSource{Name: true}}},
				},
			},
		},
		Rollout: kontrol.Rollout{Order: []metav1.LabelSelector{{MatchLabels: map[string]string{"name": "there"}}}},
	}}
	c.Make(b)
	done := c.bundleIn("web", kontrol.BundleSynced)
	require.EqualValues(t, 2, done.Status.Objects)
	require.Equal(t, kontrol.BundleCounts{Total: 2, Synced: 2}, done.Status.Clusters)
	require.Equal(t, []string{"there", "here"}, []string{done.Status.Targets[0].Name, done.Status.Targets[1].Name})
	for name, target := range map[string]*cluster{"here": c, "there": other} {
		target.has("first", map[string]string{"a": "1"})
		target.has("second", map[string]string{"a": "1", "on": name})
	}

	// An object that the first cluster refuses stops the rollout before its second wave.
	bad := strings.Replace(bundleOf("2", ""), `data: {a: "2"}`, `data: {"not a key": "2"}`, 1)
	c.Change(&kontrol.Bundle{}, "web", fmt.Sprintf(`{"spec":{"source":{"inline":%q}}}`, bad))
	failed := c.bundleIn("web", kontrol.BundleFailed)
	require.Contains(t, failed.Status.Message, "on there: wave 0: ConfigMap/default/first: ")
	require.Contains(t, failed.Status.Message, "the rollout is stopped")
	other.has("second", map[string]string{"a": "1", "on": "there"})
	c.has("first", map[string]string{"a": "1"})

	// The next content waits until it is resumed and approved. Objects that it lacks are deleted.
	c.Change(&kontrol.Bundle{}, "web",
		fmt.Sprintf(`{"spec":{"source":{"inline":%q},"rollout":{"paused":true,"approval":"Manual"}}}`,
			strings.SplitN(bundleOf("3", ""), "---\n", 2)[0]))
	c.bundleIn("web", kontrol.BundlePaused)
	c.Change(&kontrol.Bundle{}, "web", `{"spec":{"rollout":{"paused":false}}}`)
	waits := c.bundleIn("web", kontrol.BundleWaiting)
	require.Contains(t, waits.Status.Message, "coracle kontrol approve bundle/web")
	c.has("first", map[string]string{"a": "1"})
	for { // Kontrol may update the status meanwhile
		waits = waits.DeepCopy()
		waits.Status.Approved = waits.Status.Content
		err := c.Status().Update(c.Ctx, waits)
		if err == nil {
			break
		}
		require.True(t, apierrors.IsConflict(err), "%v", err)
		waits = c.bundleIn("web", kontrol.BundleWaiting)
	}
	c.bundleIn("web", kontrol.BundleSynced)
	for _, target := range []*cluster{c, other} {
		target.has("first", map[string]string{"a": "3"})
		target.Gone(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "second"}})
	}

	// A deleted Resource is created again. Deleting the Bundle deletes all.
	var list kontrol.ResourceList
	require.NoError(t, c.List(c.Ctx, &list, ctrl.MatchingLabels{kontrol.LabelBundle: "web"}))
	require.Len(t, list.Items, 2)
	uid := list.Items[0].UID
	require.NoError(t, c.Delete(c.Ctx, &list.Items[0]))
	controlplane.Until(c, &kontrol.ResourceList{}, "", list.Items[0].Name, func(r *kontrol.Resource) bool {
		return r.UID != uid
	})
	c.bundleIn("web", kontrol.BundleSynced)
	require.NoError(t, c.Delete(c.Ctx, b))
	for _, target := range []*cluster{c, other} {
		target.Gone(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"}})
	}
}

// TestKontrolBundleSources checks that content from a ConfigMap and from a registry is followed, and that
// unreadable content changes nothing.
func TestKontrolBundleSources(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	source := func(name string, s kontrol.BundleSource) *kontrol.Bundle {
		return &kontrol.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kontrol.BundleSpec{Source: s, ClusterName: "here"},
		}
	}
	document := func(name, value string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {a: %s}\n", name,
			value)
	}
	c.Make(source("from-map", kontrol.BundleSource{
		ConfigMap: &kontrol.ConfigMapReference{Namespace: "default", Name: "content"},
	}))
	require.Contains(t, c.bundleIn("from-map", kontrol.BundleInvalid).Status.Message,
		"there is no ConfigMap content in namespace default: create it")
	content := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "content"},
		Data:       map[string]string{"a": document("mapped", "one")},
	}
	c.Make(content)
	c.has("mapped", map[string]string{"a": "one"})
	c.bundleIn("from-map", kontrol.BundleSynced)
	c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "content", `{"data":{"a":"["}}`)
	require.Contains(t, c.bundleIn("from-map", kontrol.BundleInvalid).Status.Message, "a: document 1: ")
	c.has("mapped", map[string]string{"a": "one"})
	c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "content",
		fmt.Sprintf(`{"data":{"a":%q}}`, document("mapped", "two")))
	c.has("mapped", map[string]string{"a": "two"})

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/shop"
	push := func(value string) string {
		digest, err := artifact.Push(c.Ctx, ref+":v1",
			[]bundle.File{{Name: "a.yaml", Data: []byte(document("pulled", value))}}, artifact.Credentials{})
		require.NoError(t, err)
		return digest
	}
	c.Make(source("from-registry", kontrol.BundleSource{Artifact: &kontrol.Artifact{Reference: ref + ":v1"}}))
	require.Contains(t, c.bundleIn("from-registry", kontrol.BundleInvalid).Status.Message,
		"there is no artifact "+ref+":v1")
	first := push("one")
	c.Change(&kontrol.Bundle{}, "from-registry",
		fmt.Sprintf(`{"spec":{"source":{"artifact":{"reference":%q,"interval":null}}}}`, ref+"@"+first))
	require.Equal(t, first, c.bundleIn("from-registry", kontrol.BundleSynced).Status.Artifact)
	c.has("pulled", map[string]string{"a": "one"})
	second := push("two")
	c.Change(&kontrol.Bundle{}, "from-registry",
		fmt.Sprintf(`{"spec":{"source":{"artifact":{"reference":%q}}}}`, ref+"@"+second))
	c.has("pulled", map[string]string{"a": "two"})

	for want, b := range map[string]*kontrol.Bundle{
		"exactly one of inline, configMap and artifact": source("x", kontrol.BundleSource{}),
		"needs a tag or a digest": source("x", kontrol.BundleSource{
			Artifact: &kontrol.Artifact{Reference: "localhost:5000/a"},
		}),
		"where HOST has a dot or a port": source("x", kontrol.BundleSource{
			Artifact: &kontrol.Artifact{Reference: "web/a:v1"},
		}),
		"must be a clean relative path": source("x", kontrol.BundleSource{
			Artifact: &kontrol.Artifact{Reference: "localhost:5000/a:v1", Path: "../x"},
		}),
		"a lowercase RFC 1123 label": source("x", kontrol.BundleSource{
			ConfigMap: &kontrol.ConfigMapReference{},
		}),
		"may not be more than": source("x", kontrol.BundleSource{
			Inline: strings.Repeat("x", kontrol.MaxInline+1),
		}),
	} {
		err := c.Create(c.Ctx, b)
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, want)
	}
}

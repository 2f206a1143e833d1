package builtin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryRowIsWhole(t *testing.T) {
	for _, r := range Kinds().All() {
		t.Run(r.GVR().String(), func(t *testing.T) {
			o := r.New()
			o.SetName("a")
			if r.Namespaced {
				o.SetNamespace("ns")
			}
			set := r.Fields(o)
			require.Len(t, set, len(r.FieldNames))
			for _, n := range r.FieldNames {
				require.Contains(t, set, n)
			}
			require.Equal(t, "a", set["metadata.name"])
			require.Equal(t, r.Namespaced, r.Strategy.NamespaceScoped())

			if r.Default != nil {
				r.Default(o)
			}
			in, err := r.Internal(o)
			require.NoError(t, err)
			out, err := r.External(in)
			require.NoError(t, err)
			require.IsType(t, o, out)
			if d, ok := out.(*appsv1.DaemonSet); ok { // an annotation that upstream keeps for apps/v1beta2
				require.Contains(t, d.Annotations, appsv1.DeprecatedTemplateGeneration)
				d.Annotations = nil
			}
			// Upstream adds its default metric to an object without metrics.
			if h, ok := out.(*autoscalingv1.HorizontalPodAutoscaler); ok {
				require.EqualValues(t, 80, *h.Spec.TargetCPUUtilizationPercentage)
				h.Spec.TargetCPUUtilizationPercentage = nil
			}
			require.Equal(t, r.GroupVersionKind, out.GetObjectKind().GroupVersionKind())
			o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind)
			require.True(t, equality.Semantic.DeepEqual(o, out), "%v\n%v", o, out)

			list := r.NewList()
			require.NoError(t, meta.SetList(list, nil))
			empty, err := r.Table.ConvertToTable(context.Background(), list, nil)
			require.NoError(t, err)
			require.NotEmpty(t, empty.ColumnDefinitions)
			require.Empty(t, empty.Rows)
			one, err := r.Table.ConvertToTable(context.Background(), o, &metav1.TableOptions{NoHeaders: true})
			require.NoError(t, err)
			require.Empty(t, one.ColumnDefinitions)
			require.Len(t, one.Rows, 1)
			require.Len(t, one.Rows[0].Cells, len(empty.ColumnDefinitions))
			require.Same(t, o, one.Rows[0].Object.Object)

			require.True(t, Kinds().Holds(r.Storage))
			for _, s := range r.Subresources {
				require.NotEmpty(t, s.Verbs, s.Name)
				does := 0
				for _, defined := range []bool{s.Create != nil, s.Scale != nil, s.Update != nil, s.Connect != nil} {
					if defined {
						does++
					}
				}
				require.Equal(t, 1, does, "%s does one thing", s.Name)
				require.Equal(t, s.New == nil, s.Connect != nil, s.Name)
				if s.New != nil {
					gvks, _, err := legacyscheme.Scheme.ObjectKinds(s.New())
					require.NoError(t, err)
					require.Contains(t, gvks, s.GroupVersionKind)
				}
			}
		})
	}
}

// Keys use the plural name, except for upstream's kubeapiserver.SpecialDefaultResourcePrefixes.
func TestKeysAreUpstreams(t *testing.T) {
	special := map[string]string{
		"endpoints":              "services/endpoints",
		"nodes":                  "minions",
		"services":               "services/specs",
		"replicationcontrollers": "controllers",
		"ingresses":              "ingress",
	}
	for _, r := range Kinds().All() {
		if !r.Proto || r.StoredJSON {
			require.Equal(t, r.Group+"/"+r.Plural, r.Keys) // as for custom resources
			continue
		}
		want := special[r.Plural]
		if want == "" {
			want = r.Plural
		}
		require.Equal(t, want, r.Keys)
	}
}

func TestFieldSelectorsAreUpstreams(t *testing.T) {
	for _, r := range Kinds().All() {
		if !r.Proto {
			continue
		}
		for _, other := range Kinds().All() {
			for _, name := range other.FieldNames {
				_, _, err := legacyscheme.Scheme.ConvertFieldLabel(r.GroupVersionKind, name, "x")
				if name == "metadata.namespace" && !r.Namespaced {
					continue // upstream is inconsistent here
				}
				require.Equal(t, err == nil, contains(r.FieldNames, name), "%s %s", r.Kind, name)
			}
		}
	}
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

func TestBuiltinRows(t *testing.T) {
	b := Kinds()
	require.Equal(t, "Pod", b.ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Kind)
	require.Equal(t, "/registry/services/endpoints/default/web",
		b.ByGVK(corev1.SchemeGroupVersion.WithKind("Endpoints")).Key("default", "web"))
	require.Equal(t, "/registry/minions/n1", b.ByGVK(corev1.SchemeGroupVersion.WithKind("Node")).Key("", "n1"))
	pod := b.ByGVK(corev1.SchemeGroupVersion.WithKind("Pod"))
	require.NotNil(t, pod.Subresource("eviction").New)
	require.Nil(t, pod.Subresource("status"))
}

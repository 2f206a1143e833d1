package placement

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

const template = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop"},"spec":{"replicas":1,"list":["a"]}}`

func edge(labels ...string) *kontrol.Cluster {
	c := &kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "edge", Labels: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		c.Labels[labels[i]] = labels[i+1]
	}
	return c
}

func with(overrides ...kontrol.Override) *kontrol.Resource {
	r := &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: kontrol.ResourceSpec{
			ClusterName: "edge",
			Template:    runtime.RawExtension{Raw: []byte(template)},
			Overrides:   overrides,
		},
	}
	kontrol.Default(r)
	return r
}

func patch(ops ...kontrol.PatchOperation) kontrol.Override { return kontrol.Override{Patch: ops} }

func set(op, path, value string) kontrol.PatchOperation {
	return kontrol.PatchOperation{Op: op, Path: path, Value: &apiextensionsv1.JSON{Raw: []byte(value)}}
}

func from(path string, v kontrol.ValueSource) kontrol.PatchOperation {
	return kontrol.PatchOperation{Op: "add", Path: path, ValueFrom: &v}
}

func TestRender(t *testing.T) {
	fallback := "3"
	for name, c := range map[string]struct {
		r       *kontrol.Resource
		cluster *kontrol.Cluster
		want    string // of spec
		err     string
	}{
		"nothing": {with(), edge(), `{"replicas":1,"list":["a"]}`, ""},
		"a value": {with(patch(set("replace", "/spec/replicas", "5"))), edge(), `{"replicas":5,"list":["a"]}`, ""},
		"the other cluster": {
			with(kontrol.Override{ClusterName: "other", Patch: []kontrol.PatchOperation{set("replace", "/spec/replicas", "5")}}),
			edge(), `{"replicas":1,"list":["a"]}`, "",
		},
		"by labels, in turn": {
			with(kontrol.Override{
				ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
				Patch:           []kontrol.PatchOperation{set("replace", "/spec/replicas", "5")},
			},
				patch(kontrol.PatchOperation{Op: "copy", From: "/spec/replicas", Path: "/spec/list/-"})), edge("a", "b"),
			`{"replicas":5,"list":["a",5]}`, "",
		},
		"a label": {
			with(patch(from("/spec/region", kontrol.ValueSource{Label: "region", Prefix: "eu-", Suffix: "!"}))),
			edge("region", "west"), `{"replicas":1,"list":["a"],"region":"eu-west!"}`, "",
		},
		"an integer": {
			with(patch(from("/spec/replicas", kontrol.ValueSource{Label: "size", Type: kontrol.ValueInteger}))),
			edge("size", "7"), `{"replicas":7,"list":["a"]}`, "",
		},
		"a boolean": {
			with(patch(from("/spec/paused", kontrol.ValueSource{Label: "p", Type: kontrol.ValueBoolean}))), edge("p", "true"),
			`{"replicas":1,"list":["a"],"paused":true}`, "",
		},
		"the name": {
			with(patch(from("/spec/on", kontrol.ValueSource{Name: true}))), edge(), `{"replicas":1,"list":["a"],"on":"edge"}`,
			"",
		},
		"a default": {
			with(patch(from("/spec/replicas", kontrol.ValueSource{
				Label:   "size",
				Type:    kontrol.ValueInteger,
				Default: &fallback,
			}))), edge(), `{"replicas":3,"list":["a"]}`, "",
		},
		"no label": {
			with(patch(from("/spec/replicas", kontrol.ValueSource{Label: "size"}))), edge(), "",
			"cluster edge has no label size: set it",
		},
		"no integer": {
			with(patch(from("/spec/replicas", kontrol.ValueSource{Label: "size", Type: kontrol.ValueInteger}))),
			edge("size", "big"), "", `"big" of cluster edge is not an integer`,
		},
		"no such path":  {with(patch(set("replace", "/spec/none/x", "1"))), edge(), "", "replace /spec/none/x"},
		"a failed test": {with(patch(set("test", "/spec/replicas", "2"))), edge(), "", "test"},
		"an index too high": {
			with(patch(set("add", "/spec/list/1000000000", "1"))), edge(), "", "add /spec/list/1000000000",
		},
		"Kontrol's own": {
			with(patch(set("add", "/metadata/annotations", `{"kontrol/resource-id":"1"}`))), edge(), "", "Kontrol sets it",
		},
		"a status by move": {
			with(patch(kontrol.PatchOperation{Op: "copy", From: "/spec", Path: "/status"})), edge(), "", "the cluster writes it",
		},
		"another name": {
			with(patch(kontrol.PatchOperation{Op: "copy", From: "/kind", Path: "/metadata/name"})), edge(), "",
			"must not change the object",
		},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := Render(c.r, c.cluster)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.NotEmpty(t, Variant(c.r, c.cluster))
				return
			}
			require.NoError(t, err)
			require.Empty(t, kontrol.Validate(c.r))
			var got struct{ Spec json.RawMessage }
			require.NoError(t, json.Unmarshal(raw, &got))
			require.JSONEq(t, c.want, string(got.Spec))
			require.Equal(t, c.want == `{"replicas":1,"list":["a"]}`, Variant(c.r, c.cluster) == "")
		})
	}
}

// TestVariantsChangeWithTheLabels checks that the variant depends on the labels in use, and on no others.
func TestVariantsChangeWithTheLabels(t *testing.T) {
	r := with(patch(from("/spec/region", kontrol.ValueSource{Label: "region"})))
	west := Variant(r, edge("region", "west"))
	require.NotEqual(t, west, Variant(r, edge("region", "east")))
	require.NotEqual(t, west, Variant(r, edge()))
	require.Equal(t, west, Variant(r, edge("region", "west", "other", "x")))
}

// TestCopiesDoNotGrowWithoutBound: each operation doubles the object. The limit must apply before memory is allocated.
func TestCopiesDoNotGrowWithoutBound(t *testing.T) {
	ops := []kontrol.PatchOperation{set("add", "/spec/x", `{"a":"`+strings.Repeat("x", 1000)+`"}`)}
	for i := range kontrol.MaxOperations - 1 {
		ops = append(ops, kontrol.PatchOperation{Op: "copy", From: "/spec", Path: fmt.Sprintf("/spec/x%d", i)})
	}
	r := with(patch(ops...))
	require.Empty(t, kontrol.Validate(r))
	_, err := Render(r, edge())
	require.Error(t, err)
}

func TestOverridesAreValidated(t *testing.T) {
	for want, o := range map[string]kontrol.Override{
		"at least one operation": {},
		"clusterName is set": {
			ClusterName: "a", ClusterSelector: &metav1.LabelSelector{},
			Patch: []kontrol.PatchOperation{set("add", "/spec/a", "1")},
		},
		"supported values":               patch(kontrol.PatchOperation{Op: "merge", Path: "/a"}),
		"cannot change which object":     patch(set("replace", "/metadata/name", `"x"`)),
		"or its status":                  patch(kontrol.PatchOperation{Op: "remove", Path: "/metadata"}),
		"must be a JSON pointer":         patch(set("add", "spec.replicas", "1")),
		"that is not ~0 or ~1":           patch(set("add", "/a~2", "1")),
		"exactly one of value":           patch(kontrol.PatchOperation{Op: "add", Path: "/a"}),
		"only add, replace and test":     patch(set("remove", "/a", "1")),
		"only move and copy":             patch(kontrol.PatchOperation{Op: "remove", Path: "/a", From: "/b"}),
		"exactly one of label and name":  patch(from("/a", kontrol.ValueSource{})),
		"name part must consist of":      patch(from("/a", kontrol.ValueSource{Label: "a b"})),
		"spec.overrides[0].patch[0].val": patch(from("/a", kontrol.ValueSource{Label: "a", Type: "Float"})),
		"may not be more than":           patch(set("add", "/a", `"`+strings.Repeat("x", 65<<10)+`"`)),
		"nested more than":               patch(set("add", "/a", strings.Repeat("[", 100)+strings.Repeat("]", 100))),
	} {
		t.Run(want, func(t *testing.T) {
			require.ErrorContains(t, kontrol.Validate(with(o)).ToAggregate(), want)
		})
	}
	require.ErrorContains(t, kontrol.Validate(with(make([]kontrol.Override, 33)...)).ToAggregate(),
		"must have at most 32 items")
}

package apiserver

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// document holds the compared part of an OpenAPI 3 document.
type document struct {
	Paths      map[string]map[string]json.RawMessage
	Components struct{ Schemas map[string]json.RawMessage }
}

type documentParameter struct {
	Name, In, Description string
	Required              bool
	Schema                struct{ Type string }
}

type documentContent map[string]struct {
	Schema struct {
		Ref  string `json:"$ref"`
		Type string
	}
}

type documentOperation struct {
	OperationID string `json:"operationId"`
	Description string
	Tags        []string
	Action      string                  `json:"x-kubernetes-action"`
	Kind        schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
	Parameters  []documentParameter
	RequestBody struct {
		Required bool
		Content  documentContent
	}
	Responses map[string]struct {
		Description string
		Content     documentContent
	}
}

// comparable returns an operation with its path's parameters, but without CBOR and shards, which this server does
// not have.
func (d document) comparable(t *testing.T, path, method string) documentOperation {
	t.Helper()
	var op documentOperation
	require.NoError(t, json.Unmarshal(d.Paths[path][method], &op))
	if raw := d.Paths[path]["parameters"]; raw != nil {
		var shared []documentParameter
		require.NoError(t, json.Unmarshal(raw, &shared))
		op.Parameters = append(op.Parameters, shared...)
	}
	op.Parameters = slices.DeleteFunc(op.Parameters, func(p documentParameter) bool { return p.Name == "shardSelector" })
	slices.SortFunc(op.Parameters, func(a, b documentParameter) int { return strings.Compare(a.Name+a.In, b.Name+b.In) })
	noCBOR := func(c documentContent) {
		for media := range c {
			if strings.Contains(media, "cbor") {
				delete(c, media)
			}
		}
	}
	noCBOR(op.RequestBody.Content)
	for _, r := range op.Responses {
		noCBOR(r.Content)
	}
	return op
}

func (d document) methods(path string) (out []string) {
	for m := range d.Paths[path] {
		if m != "parameters" {
			out = append(out, m)
		}
	}
	slices.Sort(out)
	return out
}

// listedOnly reports whether the path's kind can only be listed and watched.
func listedOnly(table *kind.Table, gv schema.GroupVersion, path string) bool {
	return slices.ContainsFunc(table.All(), func(r *kind.Resource) bool {
		return r.GroupVersion() == gv && !slices.Contains(r.Verbs, "create") &&
			slices.Contains(strings.Split(path, "/"), r.Plural)
	})
}

// Every declared operation equals upstream's published one.
func TestPathsAreUpstreams(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	require.NoError(t, err)
	folder := filepath.Join(strings.TrimSpace(string(out)), "api/openapi-spec/v3")
	table := assembled.Kinds()
	o := newOpenAPI(table, version.Info{GitVersion: "v1.37.1"}, &documents{})
	compared := 0
	for _, gv := range o.order {
		raw, err := os.ReadFile(filepath.Join(folder, strings.ReplaceAll(pathOf(gv), "/", "__")+"_openapi.json"))
		if os.IsNotExist(err) {
			require.True(t,
				strings.HasSuffix(gv.Group, ".coracle.dev") ||
					slices.Contains([]string{"buildbarn.io", "snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"}, gv.Group),
				"upstream publishes no %s", gv)
			continue
		}
		require.NoError(t, err)
		var want, have document
		require.NoError(t, json.Unmarshal(raw, &want))
		ours, err := o.buildV3(gv)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(ours, &have))
		for path := range have.Paths {
			if !assert.NotNil(t, want.Paths[path], "upstream has no %s", path) {
				continue
			}
			if listedOnly(table, gv, path) {
				assert.Subset(t, want.methods(path), have.methods(path), path)
			} else {
				assert.Equal(t, want.methods(path), have.methods(path), path)
			}
			for _, method := range have.methods(path) {
				wanted, had := want.comparable(t, path, method), have.comparable(t, path, method)
				if had.OperationID == "deleteCoreV1Namespace" {
					// Upstream documents a Status but returns the Namespace.
					wanted.Responses = had.Responses
				}
				assert.Empty(t, cmp.Diff(wanted, had), "%s %s", method, path)
				compared++
			}
		}
		for path := range want.Paths {
			for _, r := range table.All() {
				if !slices.Contains(r.Verbs, "create") {
					continue
				}
				if r.Plural == "namespaces" && strings.Contains(path, "{namespace}") {
					continue // resources in a namespace
				}
				collection := "/" + pathOf(gv) + "/"
				if r.Namespaced {
					collection += "namespaces/{namespace}/"
				}
				if collection += r.Plural; r.GroupVersion() == gv &&
					(path == collection || strings.HasPrefix(path, collection+"/")) {
					assert.NotNil(t, have.Paths[path], "upstream has %s", path)
				}
			}
		}
		for name := range have.Components.Schemas {
			assert.NotNil(t, want.Components.Schemas[name], "upstream has no schema %s", name)
		}
	}
	require.Greater(t, compared, 250)
}

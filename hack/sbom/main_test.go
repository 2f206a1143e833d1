package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// TestDescribe describes this test's own binary, alone and embedded in itself.
func TestDescribe(t *testing.T) {
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	outer, err := read("outer", data)
	require.NoError(t, err)
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	inner, err := read("inner", w.EncodeAll(data, nil))
	require.NoError(t, err)
	require.Equal(t, outer.sum, inner.sum)

	d := describe([]program{outer, inner})
	first, err := json.Marshal(d)
	require.NoError(t, err)
	again, err := json.Marshal(describe([]program{outer, inner}))
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, again), "the same binaries give the same document")

	require.Regexp(t, "^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", d.SerialNumber)
	require.Equal(t, "outer", d.Metadata.Component.Name)
	refs := map[string]component{}
	for _, c := range d.Components {
		require.NotContains(t, refs, c.Ref, "each once")
		refs[c.Ref] = c
	}
	require.Equal(t, "application", refs["inner"].Type)
	require.Len(t, d.Dependencies, 2)
	require.Equal(t, "inner", d.Dependencies[0].DependsOn[0])
	for _, dep := range d.Dependencies {
		for _, ref := range dep.DependsOn {
			require.Contains(t, refs, ref)
		}
	}
	_, err = read("text", []byte("not a binary"))
	require.Error(t, err)
}

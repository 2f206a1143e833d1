// Package documents validates a server's OpenAPI documents, files in $DOCUMENTS, with validators that generators use.
package documents

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-openapi/spec"
	"github.com/go-openapi/strfmt"
	"github.com/go-openapi/validate"
	"github.com/stretchr/testify/require"
)

func TestOpenAPI3(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(os.Getenv("DOCUMENTS"), "v3_*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			doc, err := openapi3.NewLoader().LoadFromData(raw)
			require.NoError(t, err)
			// As in upstream's documents, fields that must not be empty have the default "".
			require.NoError(t, doc.Validate(t.Context(), openapi3.DisableSchemaDefaultsValidation()))
			lists(t, doc)
		})
	}
}

// lists checks that each list is declared as a list, and that its items have a type.
func lists(t *testing.T, doc *openapi3.T) {
	for path, item := range doc.Paths.Map() {
		op := item.Get
		if op == nil || op.Extensions["x-kubernetes-action"] != "list" {
			continue
		}
		schema := op.Responses.Value("200").Value.Content["application/json"].Schema
		require.True(t, strings.HasSuffix(schema.Ref, "List"), "%s answers %s", path, schema.Ref)
		items := schema.Value.Properties["items"]
		require.NotNil(t, items, path)
		require.True(t, items.Value.Type.Is("array"), path)
		ref := items.Value.Items.Ref
		if ref == "" { // a reference with a default beside it
			ref = items.Value.Items.Value.AllOf[0].Ref
		}
		require.Equal(t, strings.TrimSuffix(schema.Ref, "List"), ref, path)
	}
}

func TestSwagger2(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(os.Getenv("DOCUMENTS"), "swagger.json"))
	require.NoError(t, err)
	t.Run("schema", func(t *testing.T) {
		t.Parallel()
		var document any
		require.NoError(t, json.Unmarshal(raw, &document))
		require.NoError(t, validate.AgainstSchema(spec.MustLoadSwagger20Schema(), document, strfmt.Default))
	})
	t.Run("meaning", func(t *testing.T) {
		t.Parallel()
		var doc openapi2.T
		require.NoError(t, json.Unmarshal(raw, &doc))
		converted, err := openapi2conv.ToV3(&doc)
		require.NoError(t, err)
		require.NoError(t, converted.Validate(t.Context()))
	})
}

package aggregation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const document = `{"swagger":"2.0","info":{"title":"t","version":"1"},"paths":{
	"/apis/x.io/v1/":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.x.List"}}}}},
	"/apis/x.io/v10/":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.x.Other"}}}}},
	"/api/v1/pods":{"get":{"responses":{"200":{"description":"OK"}}}}},
	"definitions":{
	"io.x.List":{"type":"object","properties":{"items":{"type":"array","items":{"$ref":"#/definitions/io.x.Thing"}}}},
	"io.x.Thing":{"type":"object","properties":{"self":{"$ref":"#/definitions/io.x.Thing"}},
		"x-kubernetes-group-version-kind":[{"group":"x.io","version":"v1","kind":"Thing"},{"group":"","version":"v1","kind":"Pod"}]},
	"io.x.Other":{"type":"object"}}}`

func TestPartOfADocument(t *testing.T) {
	gv := schema.GroupVersion{Group: "x.io", Version: "v1"}
	part, err := PartOf([]byte(document), gv)
	require.NoError(t, err)
	require.Len(t, part.Paths, 1)
	require.Contains(t, part.Paths, "/apis/x.io/v1/")
	require.Len(t, part.Definitions, 2)
	require.Contains(t, string(part.Definitions["io.x.Thing"]), `[{"group":"x.io","kind":"Thing","version":"v1"}]`,
		"it may not describe others' kinds")
	again, err := PartOf([]byte(document), gv)
	require.NoError(t, err)
	require.Equal(t, part.Hash, again.Hash)

	for text, message := range map[string]string{
		strings.Replace(document, `"io.x.Thing":`, `"io.x.Thong":`, 1): "it is not in the " +
			"document",
		strings.Replace(document, `"type":"array"`, `"type":{"a":[1]}`, 1):                             "type",
		strings.ReplaceAll(document, "/apis/x.io/v1/", "/apis/y.io/v1/"):                               "no paths",
		`{"paths":{"/apis/x.io/v1/":` + strings.Repeat("[", 50000) + strings.Repeat("]", 50000) + `}}`: "deep",
		"<html>": "invalid character",
	} {
		_, err := PartOf([]byte(text), gv)
		require.ErrorContains(t, err, message)
	}
}

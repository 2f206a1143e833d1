package aggregation

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	openapi2 "github.com/google/gnostic-models/openapiv2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/api/payload"
)

// Swagger is the part of an OpenAPI 2 document about one group and version: its paths, and the definitions that they
// refer to.
type Swagger struct {
	// Hash identifies the content.
	Hash               string
	Paths, Definitions map[string]json.RawMessage
}

// Same reports whether s and other have the same content. Both may be nil.
func (s *Swagger) Same(other *Swagger) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.Hash == other.Hash
}

var reference = regexp.MustCompile(`"\$ref"\s*:\s*"#/definitions/([^"\\]+)"`)

// kinds is the extension of a definition that lists the kinds it describes.
const kinds = "x-kubernetes-group-version-kind"

// PartOf returns the part of an OpenAPI 2 document about a group and version. The part is complete: a document that
// does not parse, or that has a dangling reference, is an error, because it would break the API server's document.
// Definitions keep only kinds of this group and version.
func PartOf(data []byte, gv schema.GroupVersion) (*Swagger, error) {
	var all struct {
		Paths, Definitions map[string]json.RawMessage
	}
	if err := payload.Check(data, &all); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	part := &Swagger{Paths: map[string]json.RawMessage{}, Definitions: map[string]json.RawMessage{}}
	root := "/apis/" + gv.String()
	var todo []json.RawMessage
	for path, item := range all.Paths {
		if path == root+"/" || strings.HasPrefix(path, root+"/") {
			part.Paths[path] = item
			todo = append(todo, item)
		}
	}
	if len(part.Paths) == 0 {
		return nil, errors.New("it has no paths of the group and version")
	}
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		for _, found := range reference.FindAllSubmatch(next, -1) {
			name := string(found[1])
			if _, have := part.Definitions[name]; have {
				continue
			}
			definition, err := own(all.Definitions[name], gv)
			if err != nil {
				return nil, fmt.Errorf("definition %s: %w", name, err)
			}
			part.Definitions[name] = definition
			todo = append(todo, definition)
		}
	}
	text, err := json.Marshal(map[string]any{
		"swagger":     "2.0",
		"info":        map[string]string{"title": "x", "version": "x"},
		"paths":       part.Paths,
		"definitions": part.Definitions,
	})
	if err != nil {
		return nil, err
	}
	if _, err := openapi2.ParseDocument(text); err != nil {
		return nil, err
	}
	part.Hash = fmt.Sprintf("%X", sha256.Sum256(text))[:16]
	return part, nil
}

// own returns a definition without the kinds of other groups and versions.
func own(definition json.RawMessage, gv schema.GroupVersion) (json.RawMessage, error) {
	if definition == nil {
		return nil, errors.New("it is not in the document")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(definition, &fields); err != nil {
		return nil, err
	}
	if fields[kinds] == nil {
		return definition, nil
	}
	var list []schema.GroupVersionKind
	if err := json.Unmarshal(fields[kinds], &list); err != nil {
		return nil, err
	}
	kept := make([]map[string]string, 0, len(list))
	for _, k := range slices.DeleteFunc(list, func(k schema.GroupVersionKind) bool { return k.GroupVersion() != gv }) {
		kept = append(kept, map[string]string{"group": k.Group, "version": k.Version, "kind": k.Kind})
	}
	fields = maps.Clone(fields)
	text, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	if fields[kinds] = text; len(kept) == 0 {
		delete(fields, kinds)
	}
	return json.Marshal(fields)
}

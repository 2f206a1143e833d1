package custom

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// selectable returns the version's field labels: name, namespace and its selectable fields.
func (v *version) selectable() kind.Selectable {
	all := kind.MetaFields()
	if !v.of.namespaced() {
		all = all.ClusterScoped()
	}
	paths := map[string]string{}
	for _, f := range v.spec.SelectableFields {
		paths[strings.TrimPrefix(f.JSONPath, ".")] = f.JSONPath
	}
	if len(paths) == 0 {
		return all
	}
	parsed := make(map[string]*jsonpath.JSONPath, len(paths))
	for name, p := range paths {
		parser := jsonpath.New("selectableField").AllowMissingKeys(true)
		if parser.Parse("{"+p+"}") == nil {
			parsed[name] = parser
		}
	}
	return kind.Selectable{
		Names: append(all.Names, fieldNames(v.spec.SelectableFields)...), Set: func(o client.Object) fields.Set {
			set := all.Set(o)
			u, ok := o.(*unstructured.Unstructured)
			for name, parser := range parsed {
				set[name] = ""
				if !ok {
					continue
				}
				if found, err := parser.FindResults(u.Object); err == nil && len(found) == 1 && len(found[0]) == 1 {
					if value := found[0][0].Interface(); value != nil {
						set[name] = fmt.Sprint(value)
					}
				}
			}
			return set
		},
	}
}

func fieldNames(list []apiextensionsv1.SelectableField) []string {
	var out []string
	for _, f := range list {
		out = append(out, strings.TrimPrefix(f.JSONPath, "."))
	}
	return out
}

// scale returns the scale subresource, which reads and writes the paths that the version declares.
func (v *version) scale() *kind.Scale {
	spec := v.spec.Subresources.Scale
	s := &kind.Scale{Missing: spec.SpecReplicasPath, Paths: managedfields.ResourcePathMappings{}}
	for _, o := range v.of.versions {
		if sub := o.spec.Subresources; sub != nil && sub.Scale != nil {
			var p fieldpath.Path
			for _, name := range path(sub.Scale.SpecReplicasPath) {
				p = append(p, fieldpath.PathElement{FieldName: &name})
			}
			s.Paths[string(o.apiVersion())] = p
		} else {
			s.Paths[string(o.apiVersion())] = nil
		}
	}
	s.Read = func(o client.Object) (want *int32, have int32, selector string, err error) {
		content := o.(*unstructured.Unstructured).Object
		n, found, err := unstructured.NestedInt64(content, path(spec.SpecReplicasPath)...)
		if err != nil {
			return nil, 0, "", err
		}
		if found {
			number := int32(n) //nolint:gosec // validated on write
			want = &number
		}
		if n, _, err = unstructured.NestedInt64(content, path(spec.StatusReplicasPath)...); err != nil {
			return nil, 0, "", err
		}
		if spec.LabelSelectorPath != nil && *spec.LabelSelectorPath != "" {
			if selector, _, err = unstructured.NestedString(content, path(*spec.LabelSelectorPath)...); err != nil {
				return nil, 0, "", err
			}
		}
		return want, int32(n), selector, nil //nolint:gosec // validated on write
	}
	s.Write = func(o client.Object, n int32) error {
		return unstructured.SetNestedField(o.(*unstructured.Unstructured).Object, int64(n), path(spec.SpecReplicasPath)...)
	}
	return s
}

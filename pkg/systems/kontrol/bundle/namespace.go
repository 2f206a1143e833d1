package bundle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// CheckScope returns an error if a namespaced object has no namespace, or another one has.
func CheckScope(t kontrol.Target, namespaced bool) error {
	switch {
	case namespaced && t.Namespace == "":
		return fmt.Errorf("%s has no namespace: set metadata.namespace, or push the files with --namespace", t)
	case !namespaced && t.Namespace != "":
		return fmt.Errorf("%s has a namespace, but its kind is not namespaced: remove metadata.namespace", t)
	}
	return nil
}

// InNamespace returns files whose namespaced objects have a namespace: the given one, if they name none. Documents that
// it changes lose their comments. namespaced reports whether a kind is.
func InNamespace(files []File, namespace string, namespaced func(group, kind string) bool) ([]File, error) {
	out := make([]File, 0, len(files))
	for _, f := range files {
		data, err := inNamespace(f, namespace, namespaced)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		out = append(out, File{Name: f.Name, Data: data})
	}
	return out, nil
}

func inNamespace(f File, namespace string, namespaced func(group, kind string) bool) ([]byte, error) {
	var out bytes.Buffer
	changed := false
	all := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(f.Data)))
	for n := 1; ; n++ {
		text, err := all.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var o map[string]any
		if err == nil {
			o, err = document(text)
		}
		set := false
		if err == nil && o != nil {
			err = each(o, func(o map[string]any) error {
				set = setNamespace(o, namespace, namespaced) || set
				return nil
			}, 0)
		}
		if err == nil && set {
			changed = true
			text, err = encode(o, path.Ext(f.Name) == ".json")
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if n > 1 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	if !changed {
		return f.Data, nil
	}
	return out.Bytes(), nil
}

func encode(o map[string]any, asJSON bool) ([]byte, error) {
	if !asJSON {
		return yaml.Marshal(o)
	}
	text, err := json.MarshalIndent(o, "", "  ")
	return append(text, '\n'), err
}

// setNamespace sets the namespace of an object that needs and lacks one, and reports whether it did.
func setNamespace(o map[string]any, namespace string, namespaced func(group, kind string) bool) bool {
	version, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	gv, err := schema.ParseGroupVersion(version)
	meta, isMap := o["metadata"].(map[string]any)
	has, _ := meta["namespace"].(string)
	if err != nil || !isMap || has != "" || !namespaced(gv.Group, kind) {
		return false
	}
	meta["namespace"] = namespace
	return true
}

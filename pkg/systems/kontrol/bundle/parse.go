package bundle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/payload"
)

// Parse returns the objects of files in the order of Sort. Lists are expanded. The error names the file and the
// document or object.
func Parse(files []File) ([]Object, error) {
	var out []Object
	seen := map[string]string{}
	total := 0
	for _, f := range files {
		if total += len(f.Data); total > MaxBytes {
			return nil, fmt.Errorf("the files have more than %d bytes", MaxBytes)
		}
		err := documents(f.Data, func(o map[string]any) error {
			if len(out) == kontrol.MaxBundleObjects {
				return fmt.Errorf("there are more than %d objects: make several bundles", kontrol.MaxBundleObjects)
			}
			made, err := object(o)
			if err != nil {
				return err
			}
			made.From = f.Name
			if was, ok := seen[made.Key()]; ok {
				return fmt.Errorf("%s is in %s already", made.Target, was)
			}
			seen[made.Key()] = f.Name
			out = append(out, made)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there are no objects: files that end in .yaml, .yml or .json are read")
	}
	Sort(out)
	waves := 1
	for i := 1; i < len(out); i++ {
		if out[i].Wave != out[i-1].Wave {
			waves++
		}
	}
	if waves > kontrol.MaxBundleWaves {
		return nil, fmt.Errorf("the objects have %d waves, at most %d are allowed", waves, kontrol.MaxBundleWaves)
	}
	return out, nil
}

func documents(data []byte, f func(map[string]any) error) error {
	all := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		text, err := all.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var o map[string]any
		if err == nil {
			o, err = document(text)
		}
		if err == nil && o != nil {
			err = each(o, f, 0)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// document returns the object or list of a document; nil if the document is empty.
func document(text []byte) (o map[string]any, err error) {
	if err := payload.CheckYAML(text); err != nil {
		return nil, err
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil || string(raw) == "null" {
		return nil, err
	}
	if utiljson.Unmarshal(raw, &o) != nil {
		return nil, errors.New("the document is not an object")
	}
	return o, nil
}

func each(o map[string]any, f func(map[string]any) error, depth int) error {
	kind, _ := o["kind"].(string)
	items, isList := o["items"].([]any)
	if !isList || !strings.HasSuffix(kind, "List") {
		return f(o)
	}
	if depth > 2 {
		return errors.New("lists are nested")
	}
	for i, v := range items {
		item, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("item %d of %s is not an object", i, kind)
		}
		if err := each(item, f, depth+1); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

func object(o map[string]any) (Object, error) {
	if version, _ := o["apiVersion"].(string); strings.HasPrefix(version, "kustomize.config.k8s.io/") {
		return Object{}, errors.New("kustomizations are not built here: push the output of `kubectl kustomize`")
	}
	delete(o, "status")
	raw, err := json.Marshal(o)
	if err != nil {
		return Object{}, err
	}
	r := &kontrol.Resource{Spec: kontrol.ResourceSpec{Template: runtime.RawExtension{Raw: raw}}}
	kontrol.Prepare(r, nil)
	t := kontrol.TargetOf(r)
	if errs := kontrol.ValidateTemplate(r); len(errs) > 0 {
		return Object{}, fmt.Errorf("%s: %w", t, errs.ToAggregate())
	}
	if namespaced, known := kontrol.ScopeOf(t.Group(), t.Kind); known {
		if err := CheckScope(t, namespaced); err != nil {
			return Object{}, err
		}
	}
	meta, _ := o["metadata"].(map[string]any)
	notes, _ := meta["annotations"].(map[string]any)
	wave, err := kontrol.ParseWave(notes[kontrol.AnnotationWave])
	if err != nil {
		return Object{}, fmt.Errorf("%s: annotation %s: %w", t, kontrol.AnnotationWave, err)
	}
	return Object{Target: t, Wave: wave, JSON: r.Spec.Template.Raw}, nil
}

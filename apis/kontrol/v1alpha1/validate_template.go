package v1alpha1

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateTemplate validates the fields that every object has. The clusters validate the rest.
func validateTemplate(raw []byte, at *field.Path) (errs field.ErrorList) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return field.ErrorList{field.Required(at, "the object that the clusters should have")}
	case len(raw) > MaxTemplate:
		return field.ErrorList{field.TooLong(at, "", MaxTemplate)}
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return field.ErrorList{field.Invalid(at, "", "must be an object")}
	}
	if tooDeep(object, maxDepth) {
		return field.ErrorList{field.Invalid(at, "", fmt.Sprintf("is nested more than %d levels deep", maxDepth))}
	}
	version, _ := object["apiVersion"].(string)
	gv, err := schema.ParseGroupVersion(version)
	kind, _ := object["kind"].(string)
	switch {
	case err != nil || gv.Version == "":
		errs = append(errs, field.Invalid(at.Child("apiVersion"), version, "must be a version, such as v1 or apps/v1"))
	case gv.Group == GroupVersion.Group:
		errs = append(errs,
			field.Invalid(at.Child("apiVersion"), version,
				"objects of Kontrol cannot be applied by Kontrol: a Resource could make itself"))
	}
	if kind == "" || len(kind) > 63 || len(validation.IsDNS1035Label(strings.ToLower(kind))) > 0 {
		errs = append(errs, field.Invalid(at.Child("kind"), kind, "must be a kind, such as ConfigMap"))
	}
	if strings.HasSuffix(kind, "List") && object["items"] != nil {
		errs = append(errs, field.Invalid(at.Child("kind"), kind, "must be one object: make a Resource of each item"))
	}
	if _, ok := object["status"]; ok {
		errs = append(errs, field.Forbidden(at.Child("status"), "the cluster writes it"))
	}
	meta, _ := object["metadata"].(map[string]any)
	metadata := at.Child("metadata")
	for name, v := range meta {
		switch name {
		case "name", "namespace":
			if _, ok := v.(string); !ok {
				errs = append(errs, field.Invalid(metadata.Child(name), "", "must be a string"))
			}
		case "labels", "annotations":
			errs = append(errs, validateTexts(v, name, metadata.Child(name))...)
		default:
			if v != nil {
				errs = append(errs,
					field.Forbidden(metadata.Child(name), "only name, namespace, labels and annotations may be set"))
			}
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	name, _ := meta["name"].(string)
	errs = append(errs, invalid(metadata.Child("name"), name, content.IsPathSegmentName)...)
	if name == "" || len(name) > 253 {
		errs = append(errs, field.Required(metadata.Child("name"), "of 1 to 253 bytes; generateName is not supported"))
	}
	if namespace, _ := meta["namespace"].(string); namespace != "" {
		errs = append(errs, invalid(metadata.Child("namespace"), namespace, validation.IsDNS1123Label)...)
	}
	return errs
}

func validateTexts(v any, name string, at *field.Path) (errs field.ErrorList) {
	if v == nil {
		return nil
	}
	texts := map[string]string{}
	all, ok := v.(map[string]any)
	for key, value := range all {
		text, isText := value.(string)
		ok = ok && isText
		texts[key] = text
		if strings.HasPrefix(key, "kontrol/") && key != AnnotationWave {
			errs = append(errs, field.Forbidden(at.Key(key), "Kontrol sets it"))
		}
	}
	if !ok {
		return field.ErrorList{field.Invalid(at, "", "must be a map of strings")}
	}
	if name == "labels" {
		return append(errs, unversioned.ValidateLabels(texts, at)...)
	}
	return append(errs, apivalidation.ValidateAnnotations(texts, at)...)
}

func tooDeep(v any, left int) bool {
	if left == 0 {
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		for _, c := range v {
			if tooDeep(c, left-1) {
				return true
			}
		}
	case []any:
		for _, c := range v {
			if tooDeep(c, left-1) {
				return true
			}
		}
	}
	return false
}

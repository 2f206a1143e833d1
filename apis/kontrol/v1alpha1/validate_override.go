package v1alpha1

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of overrides.
const (
	// MaxOverrides is the maximum number of overrides, MaxOperations of operations in each, and maxOverrideBytes
	// the maximum total size of their values.
	MaxOverrides     = 32
	MaxOperations    = 64
	maxOverrideBytes = 64 << 10
	maxPointer       = 1024
	maxAffix         = 256
)

// ValidateTemplate validates only the template of a Resource.
func ValidateTemplate(r *Resource) field.ErrorList {
	return validateTemplate(r.Spec.Template.Raw, field.NewPath("spec", "template"))
}

// overridesSize returns the approximate size of overrides in JSON, in bytes.
func overridesSize(list []Override) int {
	if len(list) == 0 {
		return 0
	}
	raw, _ := json.Marshal(list) // validated before
	return len(raw)
}

// identity are the JSON pointers of the fields that identify an object.
var identity = []string{"/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"}

func validateOverrides(list []Override, at *field.Path) (errs field.ErrorList) {
	if n := len(list); n > MaxOverrides {
		return field.ErrorList{field.TooMany(at, n, MaxOverrides)}
	}
	size := 0
	for i := range list {
		o, at := &list[i], at.Index(i)
		errs = append(errs, validateTarget(o.ClusterName, o.ClusterSelector, "", at)...)
		if n := len(o.Patch); n > MaxOperations {
			errs = append(errs, field.TooMany(at.Child("patch"), n, MaxOperations))
			continue
		} else if n == 0 {
			errs = append(errs, field.Required(at.Child("patch"), "at least one operation"))
		}
		for j := range o.Patch {
			if v := o.Patch[j].Value; v != nil {
				size += len(v.Raw)
			}
			errs = append(errs, validateOperation(&o.Patch[j], at.Child("patch").Index(j))...)
		}
	}
	if size > maxOverrideBytes {
		errs = append(errs, field.TooLong(at, "", maxOverrideBytes))
	}
	return errs
}

func validateOperation(o *PatchOperation, at *field.Path) (errs field.ErrorList) {
	needsValue, needsFrom := false, false
	switch o.Op {
	case "add", "replace", "test":
		needsValue = true
	case "move", "copy":
		needsFrom = true
	case "remove":
	default:
		errs = append(errs,
			field.NotSupported(at.Child("op"), o.Op, []string{"add", "remove", "replace", "move", "copy", "test"}))
	}
	errs = append(errs, validatePointer(o.Path, o.Op != "test", at.Child("path"))...)
	switch {
	case needsFrom:
		errs = append(errs, validatePointer(o.From, o.Op == "move", at.Child("from"))...)
	case o.From != "":
		errs = append(errs, field.Forbidden(at.Child("from"), "only move and copy have it"))
	}
	switch hasValue := o.Value != nil && len(o.Value.Raw) > 0; {
	case !needsValue && (hasValue || o.ValueFrom != nil):
		errs = append(errs, field.Forbidden(at.Child("value"), "only add, replace and test have it"))
	case needsValue && hasValue == (o.ValueFrom != nil):
		errs = append(errs,
			field.Required(at.Child("value"), "exactly one of value and valueFrom; use remove instead of null"))
	case hasValue:
		var v any
		if json.Unmarshal(o.Value.Raw, &v) != nil {
			errs = append(errs, field.Invalid(at.Child("value"), "", "must be JSON"))
		} else if tooDeep(v, maxDepth) {
			errs = append(errs,
				field.Invalid(at.Child("value"), "", fmt.Sprintf("is nested more than %d levels deep", maxDepth)))
		}
	}
	if o.ValueFrom != nil {
		errs = append(errs, validateSource(o.ValueFrom, at.Child("valueFrom"))...)
	}
	return errs
}

// validatePointer validates a JSON pointer. If writes is set, the pointer must not be, or contain, a field that
// identifies the object.
func validatePointer(p string, writes bool, at *field.Path) field.ErrorList {
	switch {
	case len(p) > maxPointer:
		return field.ErrorList{field.TooLong(at, "", maxPointer)}
	case !strings.HasPrefix(p, "/") || strings.Count(p, "/") > maxSteps:
		return field.ErrorList{
			field.Invalid(at, p, "must be a JSON pointer, such as /spec/replicas or /metadata/annotations/a.b~1c"),
		}
	case writes && (slices.Contains(identity, p) || p == "/metadata" || p == "/status"):
		return field.ErrorList{field.Forbidden(at, "an override cannot change which object it is, or its status")}
	}
	for i := range p {
		if p[i] == '~' && (i+1 == len(p) || p[i+1] != '0' && p[i+1] != '1') {
			return field.ErrorList{field.Invalid(at, p, "has a ~ that is not ~0 or ~1")}
		}
	}
	return nil
}

func validateSource(v *ValueSource, at *field.Path) (errs field.ErrorList) {
	switch {
	case (v.Label != "") == v.Name:
		errs = append(errs, field.Required(at.Child("label"), "exactly one of label and name"))
	case v.Label != "":
		errs = append(errs, invalid(at.Child("label"), v.Label, validation.IsQualifiedName)...)
	}
	for name, text := range map[string]string{"prefix": v.Prefix, "suffix": v.Suffix} {
		if len(text) > maxAffix {
			errs = append(errs, field.TooLong(at.Child(name), "", maxAffix))
		}
	}
	if v.Default != nil && len(*v.Default) > maxAffix {
		errs = append(errs, field.TooLong(at.Child("default"), "", maxAffix))
	}
	return append(errs, oneOf(at.Child("type"), v.Type, "", ValueString, ValueInteger, ValueBoolean)...)
}

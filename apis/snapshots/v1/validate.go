package v1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxHandle is the maximum length of a driver's ID of a volume or snapshot, in bytes.
	maxHandle = 4 << 10
	// maxParameters is the maximum total size of a class's parameters, in bytes.
	maxParameters = 256 << 10
)

// Validate validates a VolumeSnapshot as the schema of upstream's CustomResourceDefinition does.
func Validate(s *VolumeSnapshot) field.ErrorList {
	spec := field.NewPath("spec")
	errs := oneOf(s.Spec.Source.VolumeSnapshotContentName, s.Spec.Source.PersistentVolumeClaimName, spec.Child("source"),
		"volumeSnapshotContentName", "persistentVolumeClaimName")
	errs = append(errs,
		validateName(s.Spec.Source.VolumeSnapshotContentName, spec.Child("source", "volumeSnapshotContentName"))...)
	errs = append(errs,
		validateName(s.Spec.Source.PersistentVolumeClaimName, spec.Child("source", "persistentVolumeClaimName"))...)
	if class := s.Spec.VolumeSnapshotClassName; class != nil && *class == "" {
		return append(errs,
			field.Invalid(spec.Child("volumeSnapshotClassName"), "",
				"volumeSnapshotClassName must not be the empty string when set"))
	}
	return append(errs, validateName(s.Spec.VolumeSnapshotClassName, spec.Child("volumeSnapshotClassName"))...)
}

// ValidateUpdate validates an update of a VolumeSnapshot.
func ValidateUpdate(s, old *VolumeSnapshot) field.ErrorList {
	errs := Validate(s)
	if !apiequality.Semantic.DeepEqual(s.Spec.Source, old.Spec.Source) {
		errs = append(errs,
			field.Invalid(field.NewPath("spec", "source"), s.Spec.Source, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

// ValidateContent validates a VolumeSnapshotContent.
func ValidateContent(c *VolumeSnapshotContent) field.ErrorList {
	spec := field.NewPath("spec")
	errs := oneOf(c.Spec.Source.VolumeHandle, c.Spec.Source.SnapshotHandle, spec.Child("source"), "volumeHandle",
		"snapshotHandle")
	errs = append(errs, validateHandle(c.Spec.Source.VolumeHandle, spec.Child("source", "volumeHandle"))...)
	errs = append(errs, validateHandle(c.Spec.Source.SnapshotHandle, spec.Child("source", "snapshotHandle"))...)
	if ref := c.Spec.VolumeSnapshotRef; ref.Name == "" || ref.Namespace == "" {
		errs = append(errs,
			field.Invalid(spec.Child("volumeSnapshotRef"), ref.Namespace+"/"+ref.Name,
				"both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"))
	}
	if mode := c.Spec.SourceVolumeMode; mode != nil && *mode != corev1.PersistentVolumeBlock &&
		*mode != corev1.PersistentVolumeFilesystem {
		errs = append(errs,
			field.NotSupported(spec.Child("sourceVolumeMode"), *mode, []corev1.PersistentVolumeMode{
				corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem,
			}))
	}
	errs = append(errs, validateDriver(c.Spec.Driver, spec.Child("driver"))...)
	return append(errs, validatePolicy(c.Spec.DeletionPolicy, spec.Child("deletionPolicy"))...)
}

// ValidateContentUpdate validates an update of a VolumeSnapshotContent.
func ValidateContentUpdate(c, old *VolumeSnapshotContent) field.ErrorList {
	errs, spec := ValidateContent(c), field.NewPath("spec")
	if !apiequality.Semantic.DeepEqual(c.Spec.Source, old.Spec.Source) {
		errs = append(errs, field.Invalid(spec.Child("source"), c.Spec.Source, apivalidation.FieldImmutableErrorMsg))
	}
	if old.Spec.SourceVolumeMode != nil &&
		!apiequality.Semantic.DeepEqual(c.Spec.SourceVolumeMode, old.Spec.SourceVolumeMode) {
		errs = append(errs,
			field.Invalid(spec.Child("sourceVolumeMode"), c.Spec.SourceVolumeMode, "sourceVolumeMode is immutable"))
	}
	return errs
}

// ValidateContentStatus validates an update of a VolumeSnapshotContent's status.
func ValidateContentStatus(c, _ *VolumeSnapshotContent) field.ErrorList {
	if s := c.Status; s != nil && s.RestoreSize != nil && *s.RestoreSize < 0 {
		return field.ErrorList{
			field.Invalid(field.NewPath("status", "restoreSize"), *s.RestoreSize, apivalidation.IsNegativeErrorMsg),
		}
	}
	return nil
}

// ValidateClass validates a VolumeSnapshotClass.
func ValidateClass(c *VolumeSnapshotClass) field.ErrorList {
	return validateClass(c.Driver, c.DeletionPolicy, c.Parameters)
}

func validateClass(driver string, policy DeletionPolicy, parameters map[string]string) field.ErrorList {
	errs := append(validateDriver(driver, field.NewPath("driver")),
		validatePolicy(policy, field.NewPath("deletionPolicy"))...)
	total := 0
	for key, value := range parameters {
		total += len(key) + len(value)
	}
	if total > maxParameters {
		errs = append(errs, field.TooLong(field.NewPath("parameters"), "", maxParameters))
	}
	return errs
}

func oneOf(a, b *string, path *field.Path, nameA, nameB string) field.ErrorList {
	if (a == nil) == (b == nil) {
		return field.ErrorList{field.Invalid(path, "", "exactly one of "+nameA+" and "+nameB+" must be set")}
	}
	return nil
}

func validateName(name *string, path *field.Path) (errs field.ErrorList) {
	if name == nil {
		return nil
	}
	for _, wrong := range apivalidation.NameIsDNSSubdomain(*name, false) {
		errs = append(errs, field.Invalid(path, *name, wrong))
	}
	return errs
}

func validateHandle(handle *string, path *field.Path) field.ErrorList {
	if handle == nil {
		return nil
	}
	return text(*handle, maxHandle, path)
}

// validateDriver validates the name of a CSI driver: a domain name of up to 63 characters, in any case. Coracle's
// own driver name has a path.
func validateDriver(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := text(name, validation.DNS1123LabelMaxLength, path)
	for _, wrong := range validation.IsQualifiedName(strings.ToLower(name)) {
		errs = append(errs, field.Invalid(path, name, wrong))
	}
	return errs
}

func validatePolicy(p DeletionPolicy, path *field.Path) field.ErrorList {
	switch p {
	case Delete, Retain:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, p, []DeletionPolicy{Delete, Retain})}
}

func text(s string, most int, path *field.Path) field.ErrorList {
	switch {
	case s == "":
		return field.ErrorList{field.Required(path, "")}
	case len(s) > most:
		return field.ErrorList{field.TooLong(path, "", most)}
	}
	return nil
}

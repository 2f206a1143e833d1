package v1

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxGroup is the maximum number of volumes in a group.
	MaxGroup = 1000
	// maxHandles is the maximum total length of a driver's IDs of a group's volumes or snapshots, in bytes.
	maxHandles = 256 << 10
)

// ValidateGroup validates a VolumeGroupSnapshot as the schema of upstream's CustomResourceDefinition does, and its
// selector.
func ValidateGroup(g *VolumeGroupSnapshot) field.ErrorList {
	spec := field.NewPath("spec")
	source := spec.Child("source")
	var errs field.ErrorList
	if (g.Spec.Source.Selector == nil) == (g.Spec.Source.VolumeGroupSnapshotContentName == nil) {
		errs = append(errs,
			field.Invalid(source, "", "exactly one of selector and volumeGroupSnapshotContentName must be set"))
	}
	errs = append(errs,
		metav1validation.ValidateLabelSelector(g.Spec.Source.Selector, metav1validation.LabelSelectorValidationOptions{},
			source.Child("selector"))...)
	errs = append(errs,
		validateName(g.Spec.Source.VolumeGroupSnapshotContentName, source.Child("volumeGroupSnapshotContentName"))...)
	if class := g.Spec.VolumeGroupSnapshotClassName; class != nil && *class == "" {
		return append(errs,
			field.Invalid(spec.Child("volumeGroupSnapshotClassName"), "",
				"volumeGroupSnapshotClassName must not be the empty string when set"))
	}
	return append(errs, validateName(g.Spec.VolumeGroupSnapshotClassName, spec.Child("volumeGroupSnapshotClassName"))...)
}

// ValidateGroupUpdate validates an update of a VolumeGroupSnapshot.
func ValidateGroupUpdate(g, old *VolumeGroupSnapshot) field.ErrorList {
	source := field.NewPath("spec", "source")
	errs := append(ValidateGroup(g),
		apivalidation.ValidateImmutableField(g.Spec.Source.Selector, old.Spec.Source.Selector, source.Child("selector"))...)
	return append(errs,
		apivalidation.ValidateImmutableField(g.Spec.Source.VolumeGroupSnapshotContentName,
			old.Spec.Source.VolumeGroupSnapshotContentName, source.Child("volumeGroupSnapshotContentName"))...)
}

// ValidateGroupStatus validates an update of a VolumeGroupSnapshot's status.
func ValidateGroupStatus(g, old *VolumeGroupSnapshot) field.ErrorList {
	if g.Status == nil || old.Status == nil {
		return nil
	}
	return immutableOnceSet(g.Status.BoundVolumeGroupSnapshotContentName, old.Status.BoundVolumeGroupSnapshotContentName,
		field.NewPath("status", "boundVolumeGroupSnapshotContentName"))
}

// ValidateGroupContent validates a VolumeGroupSnapshotContent.
func ValidateGroupContent(c *VolumeGroupSnapshotContent) field.ErrorList {
	spec := field.NewPath("spec")
	source := spec.Child("source")
	var errs field.ErrorList
	if (len(c.Spec.Source.VolumeHandles) == 0) == (c.Spec.Source.GroupSnapshotHandles == nil) {
		errs = append(errs, field.Invalid(source, "", "exactly one of volumeHandles and groupSnapshotHandles must be set"))
	}
	errs = append(errs, validateHandles(c.Spec.Source.VolumeHandles, source.Child("volumeHandles"))...)
	if h := c.Spec.Source.GroupSnapshotHandles; h != nil {
		path := source.Child("groupSnapshotHandles")
		errs = append(errs, text(h.VolumeGroupSnapshotHandle, maxHandle, path.Child("volumeGroupSnapshotHandle"))...)
		if len(h.VolumeSnapshotHandles) == 0 {
			errs = append(errs, field.Required(path.Child("volumeSnapshotHandles"), ""))
		}
		errs = append(errs, validateHandles(h.VolumeSnapshotHandles, path.Child("volumeSnapshotHandles"))...)
	}
	if ref := c.Spec.VolumeGroupSnapshotRef; ref.Name == "" || ref.Namespace == "" {
		errs = append(errs,
			field.Invalid(spec.Child("volumeGroupSnapshotRef"), ref.Namespace+"/"+ref.Name,
				"both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set"))
	}
	errs = append(errs, validateName(c.Spec.VolumeGroupSnapshotClassName, spec.Child("volumeGroupSnapshotClassName"))...)
	errs = append(errs, validateDriver(c.Spec.Driver, spec.Child("driver"))...)
	return append(errs, validatePolicy(c.Spec.DeletionPolicy, spec.Child("deletionPolicy"))...)
}

// ValidateGroupContentUpdate validates an update of a VolumeGroupSnapshotContent.
func ValidateGroupContentUpdate(c, old *VolumeGroupSnapshotContent) field.ErrorList {
	errs, spec := ValidateGroupContent(c), field.NewPath("spec")
	errs = append(errs, apivalidation.ValidateImmutableField(c.Spec.Source, old.Spec.Source, spec.Child("source"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(c.Spec.Driver, old.Spec.Driver, spec.Child("driver"))...)
	if old.Spec.VolumeGroupSnapshotClassName != nil {
		errs = append(errs,
			apivalidation.ValidateImmutableField(c.Spec.VolumeGroupSnapshotClassName, old.Spec.VolumeGroupSnapshotClassName,
				spec.Child("volumeGroupSnapshotClassName"))...)
	}
	ref, was, path := c.Spec.VolumeGroupSnapshotRef, old.Spec.VolumeGroupSnapshotRef, spec.Child("volumeGroupSnapshotRef")
	errs = append(errs, apivalidation.ValidateImmutableField(ref.Namespace, was.Namespace, path.Child("namespace"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(ref.Name, was.Name, path.Child("name"))...)
	if was.UID != "" {
		errs = append(errs, apivalidation.ValidateImmutableField(ref.UID, was.UID, path.Child("uid"))...)
	}
	return errs
}

// ValidateGroupContentStatus validates an update of a VolumeGroupSnapshotContent's status.
func ValidateGroupContentStatus(c, old *VolumeGroupSnapshotContent) field.ErrorList {
	if c.Status == nil {
		return nil
	}
	path := field.NewPath("status")
	errs := validateHandle(c.Status.VolumeGroupSnapshotHandle, path.Child("volumeGroupSnapshotHandle"))
	if old.Status != nil {
		errs = append(errs,
			immutableOnceSet(c.Status.VolumeGroupSnapshotHandle, old.Status.VolumeGroupSnapshotHandle,
				path.Child("volumeGroupSnapshotHandle"))...)
	}
	path = path.Child("volumeSnapshotInfoList")
	var ofVolumes, ofSnapshots []string
	for i, s := range c.Status.VolumeSnapshotInfoList {
		if s.RestoreSize != nil && *s.RestoreSize < 0 {
			errs = append(errs,
				field.Invalid(path.Index(i).Child("restoreSize"), *s.RestoreSize, apivalidation.IsNegativeErrorMsg))
		}
		ofVolumes, ofSnapshots = append(ofVolumes, s.VolumeHandle), append(ofSnapshots, s.SnapshotHandle)
	}
	errs = append(errs, validateHandles(ofVolumes, path)...)
	return append(errs, validateHandles(ofSnapshots, path)...)
}

// ValidateGroupClass validates a VolumeGroupSnapshotClass.
func ValidateGroupClass(c *VolumeGroupSnapshotClass) field.ErrorList {
	return validateClass(c.Driver, c.DeletionPolicy, c.Parameters)
}

// ValidateGroupClassUpdate validates an update of a VolumeGroupSnapshotClass.
func ValidateGroupClassUpdate(c, old *VolumeGroupSnapshotClass) field.ErrorList {
	errs := append(ValidateGroupClass(c),
		apivalidation.ValidateImmutableField(c.Driver, old.Driver, field.NewPath("driver"))...)
	errs = append(errs, apivalidation.ValidateImmutableField(c.Parameters, old.Parameters, field.NewPath("parameters"))...)
	return append(errs,
		apivalidation.ValidateImmutableField(c.DeletionPolicy, old.DeletionPolicy, field.NewPath("deletionPolicy"))...)
}

// validateHandles validates the IDs of a group's volumes or snapshots. They must be unique and fit into one object.
func validateHandles(handles []string, path *field.Path) field.ErrorList {
	if len(handles) > MaxGroup {
		return field.ErrorList{field.TooMany(path, len(handles), MaxGroup)}
	}
	var errs field.ErrorList
	total, seen := 0, map[string]bool{}
	for i, h := range handles {
		total += len(h)
		errs = append(errs, text(h, maxHandle, path.Index(i))...)
		if seen[h] {
			errs = append(errs, field.Duplicate(path.Index(i), h))
		}
		seen[h] = true
	}
	if total > maxHandles {
		errs = append(errs, field.TooLong(path, "", maxHandles))
	}
	return errs
}

// immutableOnceSet allows setting and removing a value but not changing it, as upstream's rules do.
func immutableOnceSet(is, was *string, path *field.Path) field.ErrorList {
	if is == nil || was == nil {
		return nil
	}
	return apivalidation.ValidateImmutableField(*is, *was, path)
}

package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ObjectsTrigger sends the changes of the objects of one kind in the worker's namespace, from now on. The service
// account of the worker must have the permission to list and watch them. A message is an event of a watch:
// {"type": "ADDED", "object": {...}}, or with the type MODIFIED or DELETED. An object that begins or ceases to match
// the selectors counts as added or deleted.
type ObjectsTrigger struct {
	// APIVersion is the group and version of the kind, such as apps/v1.
	APIVersion string `json:"apiVersion"`
	// Kind is a kind with namespaces, such as Deployment, but not Worker.
	Kind string `json:"kind"`
	// Selector selects objects by their labels. Defaults to all. At most 64 labels, requirements and values.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// FieldSelector selects objects by those fields that the kind supports, such as status.phase=Failed for pods.
	FieldSelector string `json:"fieldSelector,omitempty"`
	// Changes are the changes to send: Added, Modified, Deleted. Defaults to all.
	//
	// +listType=atomic
	Changes []ObjectChange `json:"changes,omitempty"`
}

// ObjectChange is a kind of change.
type ObjectChange string

// Changes of an object.
const (
	ObjectAdded    ObjectChange = "Added"
	ObjectModified ObjectChange = "Modified"
	ObjectDeleted  ObjectChange = "Deleted"
)

// ObjectsStatus is the state of a trigger with objects.
type ObjectsStatus struct {
	// APIVersion and Kind are the trigger's.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// ResourceVersion is the version up to which all changes are in the queue.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// Bounds of an ObjectsTrigger.
const (
	maxKindName      = 253
	maxFieldSelector = 1024
	maxSelectorTerms = 64 // labels, requirements and their values
)

func validateObjects(o *ObjectsTrigger, at *field.Path) (errs field.ErrorList) {
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil || o.APIVersion == "" || len(o.APIVersion) > maxKindName {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), o.APIVersion[:min(len(o.APIVersion), maxKindName)],
			"must be the group and version of the kind, such as apps/v1"))
	}
	switch {
	case o.Kind == "" || len(o.Kind) > maxKindName:
		errs = append(errs, field.Invalid(at.Child("kind"), o.Kind[:min(len(o.Kind), maxKindName)],
			"must be the kind of the objects, such as Deployment"))
	case gv.Group == GroupVersion.Group && o.Kind == "Worker":
		errs = append(errs, field.Invalid(at.Child("kind"), o.Kind,
			"each message changes the status of its worker, which would send the next message"))
	}
	if s := o.Selector; s != nil {
		errs = append(errs, unversioned.ValidateLabelSelector(s, unversioned.LabelSelectorValidationOptions{},
			at.Child("selector"))...)
		n := len(s.MatchLabels)
		for _, e := range s.MatchExpressions {
			n += 1 + len(e.Values)
		}
		if n > maxSelectorTerms {
			errs = append(errs, field.TooMany(at.Child("selector"), n, maxSelectorTerms))
		}
	}
	if len(o.FieldSelector) > maxFieldSelector {
		errs = append(errs, field.TooLong(at.Child("fieldSelector"), "", maxFieldSelector))
	} else if _, err := fields.ParseSelector(o.FieldSelector); err != nil {
		errs = append(errs, field.Invalid(at.Child("fieldSelector"), o.FieldSelector, err.Error()))
	}
	all := []ObjectChange{ObjectAdded, ObjectModified, ObjectDeleted}
	if len(o.Changes) > len(all) {
		return append(errs, field.TooMany(at.Child("changes"), len(o.Changes), len(all)))
	}
	for i, c := range o.Changes {
		if !slices.Contains(all, c) {
			errs = append(errs, field.NotSupported(at.Child("changes").Index(i), c, all))
		}
	}
	return errs
}

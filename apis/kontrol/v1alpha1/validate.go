package v1alpha1

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of Resources and states.
const (
	// MaxTemplate is the maximum size of a Resource's template, MaxObject of a state's object, in bytes of JSON.
	// MaxObject is larger because servers add defaults.
	MaxTemplate = 256 << 10
	MaxObject   = 512 << 10
	// MaxDrift is the maximum number of listed drifted fields, MaxError the maximum length of an error and MaxValue
	// of a drifted field's value, in bytes.
	MaxDrift = 64
	MaxError = 1024
	MaxValue = 256
	// MaxHistory is the maximum number of previous revisions, maxHistoryBytes their maximum total size.
	MaxHistory      = 10
	maxHistoryBytes = 512 << 10

	maxResourceName = 150 // leaves room for the cluster in the names of states
	maxIgnore       = 64
	maxDependsOn    = 64
	maxWave         = 1000
	maxDepth        = 64
)

// ValidateCluster validates a Cluster. Its name must be a DNS label, because names of states end with it.
func ValidateCluster(c *Cluster) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, invalid(field.NewPath("metadata", "name"), c.Name, validation.IsDNS1123Label)...)
	at := spec.Child("kubeconfigSecret")
	switch s := c.Spec.KubeconfigSecret; {
	case c.Spec.Local && c.Spec.Pull:
		errs = append(errs, field.Forbidden(spec.Child("pull"), "local is true: there is nothing to connect to"))
	case s == nil && !c.Spec.Local && !c.Spec.Pull:
		errs = append(errs, field.Required(at, "the Secret with a kubeconfig, unless local or pull is true"))
	case s == nil:
	case c.Spec.Pull:
		errs = append(errs, field.Forbidden(at, "pull is true: the cluster connects itself"))
	case c.Spec.Local:
		errs = append(errs, field.Forbidden(at, "local is true: there is nothing to connect to"))
	default:
		errs = append(errs, validateSecret(s, at)...)
	}
	return errs
}

// Validate validates a new Resource.
func Validate(r *Resource) field.ErrorList {
	return append(validateWritten(r), ValidateScope(r)...)
}

// validateWritten validates what each write of a Resource must keep.
func validateWritten(r *Resource) field.ErrorList {
	spec, meta := field.NewPath("spec"), field.NewPath("metadata")
	var errs field.ErrorList
	if len(r.Name) > maxResourceName {
		errs = append(errs, field.TooLong(meta.Child("name"), "", maxResourceName))
	}
	if v, ok := r.Annotations[AnnotationWave]; ok {
		if _, err := ParseWave(v); err != nil {
			errs = append(errs,
				field.Invalid(meta.Child("annotations").Key(AnnotationWave), v,
					fmt.Sprintf("must be an integer from %d to %d", -maxWave, maxWave)))
		}
	}
	errs = append(errs, validateTarget(r.Spec.ClusterName, r.Spec.ClusterSelector, "object", spec)...)
	if v := r.Spec.Revision; v != nil && *v < 1 {
		errs = append(errs, field.Invalid(spec.Child("revision"), *v, "must be above 0"))
	}
	errs = append(errs, validateDrift(r.Spec.Mode, r.Spec.DeletionPolicy, r.Spec.Ignore, spec)...)
	errs = append(errs, validateDependsOn(r, spec.Child("dependsOn"))...)
	errs = append(errs, validateOverrides(r.Spec.Overrides, spec.Child("overrides"))...)
	errs = append(errs, validateWindows(r.Spec.Windows, spec.Child("windows"))...)
	errs = append(errs, oneOf(spec.Child("approval"), r.Spec.Approval, "", ApprovalNone, ApprovalManual)...)
	return append(errs, validateTemplate(r.Spec.Template.Raw, spec.Child("template"))...)
}

// invalid returns an error for each message of a check of a value.
func invalid(at *field.Path, value string, check func(string) []string) (errs field.ErrorList) {
	for _, m := range check(value) {
		errs = append(errs, field.Invalid(at, value, m))
	}
	return errs
}

// oneOf returns an error if a value is none of all, of which an empty one is not named.
func oneOf[T ~string](at *field.Path, value T, all ...T) field.ErrorList {
	if slices.Contains(all, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, value, slices.DeleteFunc(all, func(v T) bool { return v == "" }))}
}

// validateTarget validates which clusters should have something. They are optional if what is empty.
func validateTarget(name string, selector *metav1.LabelSelector, what string, at *field.Path) field.ErrorList {
	switch {
	case name == "" && selector == nil && what != "":
		return field.ErrorList{
			field.Required(at.Child("clusterName"), "the cluster that should have the "+what+", or clusterSelector"),
		}
	case name != "" && selector != nil:
		return field.ErrorList{field.Forbidden(at.Child("clusterSelector"), "clusterName is set")}
	case name != "":
		return invalid(at.Child("clusterName"), name, validation.IsDNS1123Label)
	}
	return unversioned.ValidateLabelSelector(selector, unversioned.LabelSelectorValidationOptions{},
		at.Child("clusterSelector"))
}

func validateDrift(m Mode, p DeletionPolicy, i *Ignore, spec *field.Path) field.ErrorList {
	errs := oneOf(spec.Child("mode"), m, ModeReport, ModeCorrect, ModeEnforce)
	errs = append(errs, oneOf(spec.Child("deletionPolicy"), p, DeletionOrphan, DeletionDelete)...)
	return append(errs, validateIgnore(i, spec.Child("ignore"))...)
}

func validateSecret(s *SecretReference, at *field.Path) field.ErrorList {
	return append(validateNames(s.Namespace, s.Name, at), invalid(at.Child("key"), s.Key, validation.IsConfigMapKey)...)
}

func validateIgnore(y *Ignore, at *field.Path) (errs field.ErrorList) {
	if y == nil {
		return nil
	}
	if n := len(y.Fields); n > maxIgnore {
		return field.ErrorList{field.TooMany(at.Child("fields"), n, maxIgnore)}
	}
	if n := len(y.Managers); n > maxIgnore {
		return field.ErrorList{field.TooMany(at.Child("managers"), n, maxIgnore)}
	}
	for i, p := range y.Fields {
		steps, err := ParsePath(p)
		if err != nil {
			errs = append(errs, field.Invalid(at.Child("fields").Index(i), p, err.Error()))
		} else if n := steps[0].Name; n != nil && slices.Contains([]string{"apiVersion", "kind"}, *n) ||
			len(steps) == 1 && n != nil && *n == "metadata" {
			errs = append(errs, field.Invalid(at.Child("fields").Index(i), p, "cannot be ignored"))
		}
	}
	for i, m := range y.Managers {
		if m == "" || len(m) > unversioned.FieldManagerMaxLength || m == FieldManager {
			errs = append(errs,
				field.Invalid(at.Child("managers").Index(i), m,
					fmt.Sprintf("must be the name of another field manager, of 1 to %d bytes", unversioned.FieldManagerMaxLength)))
		}
	}
	return errs
}

func validateDependsOn(r *Resource, at *field.Path) (errs field.ErrorList) {
	if n := len(r.Spec.DependsOn); n > maxDependsOn {
		return field.ErrorList{field.TooMany(at, n, maxDependsOn)}
	}
	seen := map[string]bool{}
	for i, name := range r.Spec.DependsOn {
		switch {
		case name == r.Name:
			errs = append(errs, field.Invalid(at.Index(i), name, "a resource cannot depend on itself"))
		case seen[name]:
			errs = append(errs, field.Duplicate(at.Index(i), name))
		default:
			errs = append(errs, invalid(at.Index(i), name, validation.IsDNS1123Subdomain)...)
		}
		seen[name] = true
	}
	return errs
}

// ValidateUpdate validates an update. The identity of the object is immutable, so its scope is not checked again: a
// Resource that an older version has stored can still be deleted.
func ValidateUpdate(r, old *Resource) field.ErrorList {
	errs := validateWritten(r)
	if len(errs) > 0 {
		return errs
	}
	is, was := TargetOf(r), TargetOf(old)
	at := field.NewPath("spec", "template")
	for _, c := range []struct {
		path    *field.Path
		is, was string
	}{
		{at.Child("apiVersion"), is.Group(), was.Group()}, {at.Child("kind"), is.Kind, was.Kind},
		{at.Child("metadata", "namespace"), is.Namespace, was.Namespace}, {at.Child("metadata", "name"), is.Name, was.Name},
	} {
		if c.is != c.was {
			errs = append(errs,
				field.Invalid(c.path, c.is, "cannot be changed: the object of that name would stay behind; make another Resource"))
		}
	}
	return errs
}

// ValidateApplied validates the bounds of an AppliedState.
func ValidateApplied(a *AppliedState) field.ErrorList {
	return append(validateSubject(&a.State.Subject, a.Name), validateSizes(map[string]int{
		"object": len(a.State.Object.Raw), "fields": len(a.State.Fields.Raw)}, a.State.Error)...)
}

// ValidateCurrent validates the bounds of a CurrentState.
func ValidateCurrent(c *CurrentState) field.ErrorList {
	errs := append(validateSubject(&c.State.Subject, c.Name),
		validateSizes(map[string]int{"object": len(c.State.Object.Raw)}, c.State.Error)...)
	if n := len(c.State.Drift); n > MaxDrift {
		errs = append(errs, field.TooMany(field.NewPath("state", "drift"), n, MaxDrift))
	}
	for i, d := range c.State.Drift {
		if len(d.Desired) > MaxValue || len(d.Actual) > MaxValue {
			errs = append(errs, field.TooLong(field.NewPath("state", "drift").Index(i), "", MaxValue))
		}
	}
	return errs
}

func validateSubject(s *Subject, name string) field.ErrorList {
	if want := StateName(s.Resource, s.Cluster); name != want {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name, "must be "+want)}
	}
	return nil
}

func validateSizes(objects map[string]int, text string) (errs field.ErrorList) {
	at := field.NewPath("state")
	for name, n := range objects {
		if n > MaxObject {
			errs = append(errs, field.TooLong(at.Child(name), "", MaxObject))
		}
	}
	if len(text) > MaxError {
		errs = append(errs, field.TooLong(at.Child("error"), "", MaxError))
	}
	return errs
}

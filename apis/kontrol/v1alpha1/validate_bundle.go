package v1alpha1

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of Bundles.
const (
	// MaxInline is the maximum size of inline content, in bytes.
	MaxInline = 512 << 10
	// These are the maximum numbers of objects, waves and clusters of a Bundle, and of Resources that it creates.
	MaxBundleObjects   = 500
	MaxBundleWaves     = 64
	MaxTargets         = 500
	MaxBundleResources = 10_000

	maxOrder     = 16
	maxReference = 512
	minInterval  = 10 * time.Second
)

// Defaults of Bundles.
const (
	DefaultHealthTimeout = 5 * time.Minute
	DefaultInterval      = 5 * time.Minute
	maxHealthTimeout     = 24 * time.Hour
)

// DockerConfigKey is the default key of the credentials in a pull secret.
const DockerConfigKey = ".dockerconfigjson"

// DefaultBundle sets the defaults. It is idempotent.
func DefaultBundle(b *Bundle) {
	s := &b.Spec
	s.Mode = cmp.Or(s.Mode, ModeCorrect)
	s.DeletionPolicy = cmp.Or(s.DeletionPolicy, DeletionDelete)
	s.Rollout.OnFailure = cmp.Or(s.Rollout.OnFailure, FailureStop)
	s.Rollout.Approval = cmp.Or(s.Rollout.Approval, ApprovalNone)
	if s.Rollout.MaxUnavailable == nil {
		s.Rollout.MaxUnavailable = new(intstr.FromInt32(1))
	}
	if s.Rollout.HealthTimeout == nil {
		s.Rollout.HealthTimeout = &metav1.Duration{Duration: DefaultHealthTimeout}
	}
	if a := s.Source.Artifact; a != nil {
		if a.Interval == nil && !strings.Contains(a.Reference, "@") {
			a.Interval = &metav1.Duration{Duration: DefaultInterval}
		}
		if a.PullSecret != nil && a.PullSecret.Key == "" {
			a.PullSecret.Key = DockerConfigKey
		}
	}
}

// ValidateBundle validates a Bundle except for its content. Its name must be a DNS label, because it is a label
// value of its Resources.
func ValidateBundle(b *Bundle) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	errs = append(errs, invalid(field.NewPath("metadata", "name"), b.Name, validation.IsDNS1123Label)...)
	s := &b.Spec
	errs = append(errs, validateBundleSource(&s.Source, spec.Child("source"))...)
	errs = append(errs, validateTarget(s.ClusterName, s.ClusterSelector, "objects", spec)...)
	errs = append(errs, validateDrift(s.Mode, s.DeletionPolicy, s.Ignore, spec)...)
	overrides := make([]Override, len(s.Overrides))
	for i := range s.Overrides {
		overrides[i] = s.Overrides[i].Override
	}
	errs = append(errs, validateOverrides(overrides, spec.Child("overrides"))...)
	errs = append(errs, validateWindows(s.Windows, spec.Child("windows"))...)
	return append(errs, validateRollout(&s.Rollout, spec.Child("rollout"))...)
}

func validateRollout(r *Rollout, at *field.Path) (errs field.ErrorList) {
	if n := len(r.Order); n > maxOrder {
		errs = append(errs, field.TooMany(at.Child("order"), n, maxOrder))
	}
	for i := range r.Order {
		errs = append(errs,
			unversioned.ValidateLabelSelector(&r.Order[i], unversioned.LabelSelectorValidationOptions{},
				at.Child("order").Index(i))...)
	}
	if m := r.MaxUnavailable; m != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(m, 100, false)
		if err != nil || n < 1 || m.Type == intstr.String && n > 100 {
			errs = append(errs,
				field.Invalid(at.Child("maxUnavailable"), m.String(), "must be a number above 0, or a percentage from 1% to 100%"))
		}
	}
	if t := r.HealthTimeout; t != nil && (t.Duration < time.Second || t.Duration > maxHealthTimeout) {
		errs = append(errs, field.Invalid(at.Child("healthTimeout"), t.Duration.String(), "must be from 1s to 24h"))
	}
	errs = append(errs, oneOf(at.Child("onFailure"), r.OnFailure, FailureStop, FailureContinue)...)
	return append(errs, oneOf(at.Child("approval"), r.Approval, "", ApprovalNone, ApprovalManual)...)
}

// reference matches HOST/PATH with a tag, a digest or both, as in the OCI distribution specification. The host must
// have a dot or a port or be localhost: artifacts have no default registry.
var reference = regexp.MustCompile(
	`^(localhost|[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)+|[a-zA-Z0-9.-]+:[0-9]{1,5})(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+(:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127})?(@sha256:[a-f0-9]{64})?$`)

func validateBundleSource(s *BundleSource, at *field.Path) (errs field.ErrorList) {
	set := 0
	for _, is := range []bool{s.Inline != "", s.ConfigMap != nil, s.Artifact != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return field.ErrorList{field.Required(at, "exactly one of inline, configMap and artifact")}
	}
	if n := len(s.Inline); n > MaxInline {
		errs = append(errs, field.TooLong(at.Child("inline"), "", MaxInline))
	}
	if m := s.ConfigMap; m != nil {
		errs = append(errs, validateNames(m.Namespace, m.Name, at.Child("configMap"))...)
	}
	a := s.Artifact
	if a == nil {
		return errs
	}
	at = at.Child("artifact")
	if len(a.Reference) > maxReference || !reference.MatchString(a.Reference) {
		errs = append(errs,
			field.Invalid(at.Child("reference"), cut(a.Reference, maxReference),
				"must be HOST/PATH:TAG or HOST/PATH@sha256:DIGEST, where HOST has a dot or a port"))
	} else if rest := a.Reference[strings.LastIndexByte(a.Reference, '/'):]; !strings.ContainsAny(rest, ":@") {
		errs = append(errs, field.Invalid(at.Child("reference"), a.Reference, "needs a tag or a digest"))
	}
	if p := a.Path; p != "" &&
		(len(p) > maxPath || strings.HasPrefix(p, "/") || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../")) {
		errs = append(errs,
			field.Invalid(at.Child("path"), cut(p, maxPath), "must be a clean relative path, such as deploy/base"))
	}
	if p := a.PullSecret; p != nil {
		errs = append(errs, validateSecret(p, at.Child("pullSecret"))...)
	}
	if i := a.Interval; i != nil {
		if i.Duration < minInterval {
			errs = append(errs,
				field.Invalid(at.Child("interval"), i.Duration.String(), fmt.Sprintf("must be %s or more", minInterval)))
		}
		if strings.Contains(a.Reference, "@") {
			errs = append(errs, field.Forbidden(at.Child("interval"), "a digest never changes"))
		}
	}
	return errs
}

func validateNames(namespace, name string, at *field.Path) field.ErrorList {
	return append(invalid(at.Child("namespace"), namespace, validation.IsDNS1123Label),
		invalid(at.Child("name"), name, validation.IsDNS1123Subdomain)...)
}

func cut(s string, most int) string { return s[:min(len(s), most)] }

// ParseWave returns the wave in a value of AnnotationWave, or 0 for nil.
func ParseWave(v any) (int, error) {
	if v == nil {
		return 0, nil
	}
	text, _ := v.(string)
	n, err := strconv.Atoi(text)
	if err != nil || n < -maxWave || n > maxWave {
		return 0, fmt.Errorf("%q must be an integer from %d to %d", text, -maxWave, maxWave)
	}
	return n, nil
}

package v1alpha1

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of parts.
const (
	maxReplicas   = 1000
	maxSeconds    = 86400
	maxProperties = 32
	// maxStorageName leaves room in label values for the hashes in names of StatefulSet revisions and pods.
	maxStorageName = 52
	maxImage       = 512
)

var (
	minCAS = resource.MustParse("128Mi")
	minAC  = resource.MustParse("16Mi")
)

// ValidatePart validates a part, except for most of its metadata.
func ValidatePart(p Part) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePods(p.Pods(), path)
	most := validation.DNS1035LabelMaxLength
	switch p := p.(type) {
	case *BuildbarnScheduler:
		errs = append(errs, validateService(p.Spec.ServiceType, path)...)
	case *BuildbarnFrontend:
		errs = append(errs, validateService(p.Spec.ServiceType, path)...)
	case *BuildbarnBrowser:
		errs = append(errs, validateService(p.Spec.ServiceType, path)...)
	case *BuildbarnWorker:
		errs = append(errs, validateWorker(p, path)...)
	case *BuildbarnStorage:
		most = maxStorageName
		errs = append(errs, validateStorage(p, path)...)
	}
	errs = append(errs, validateHost(HostOf(p), path.Child("ingressHost"))...)
	return append(errs, validateName(p.GetName(), most)...)
}

// ValidateScheduler validates a scheduler. All fields may change.
func ValidateScheduler(s *BuildbarnScheduler) field.ErrorList { return ValidatePart(s) }

// ValidateWorker validates a worker.
func ValidateWorker(w *BuildbarnWorker) field.ErrorList { return ValidatePart(w) }

// ValidateStorage validates storage.
func ValidateStorage(s *BuildbarnStorage) field.ErrorList { return ValidatePart(s) }

// ValidateFrontend validates a frontend.
func ValidateFrontend(f *BuildbarnFrontend) field.ErrorList { return ValidatePart(f) }

// ValidateBrowser validates a browser.
func ValidateBrowser(b *BuildbarnBrowser) field.ErrorList { return ValidatePart(b) }

// validateName validates the name of an object whose children, including Services, have the same name.
func validateName(name string, most int) (errs field.ErrorList) {
	if name == "" {
		return nil // to be generated
	}
	at := field.NewPath("metadata", "name")
	if len(name) > most {
		errs = append(errs,
			field.Invalid(at, name, fmt.Sprintf("must be no more than %d characters, for the names of its children", most)))
	}
	for _, msg := range apivalidation.NameIsDNS1035Label(name, false) {
		if !strings.Contains(msg, "no more than") {
			errs = append(errs, field.Invalid(at, name, msg))
		}
	}
	return errs
}

func between[T int32 | int64](v, least, most T, path *field.Path) field.ErrorList {
	if v < least || v > most {
		return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("must be between %d and %d", least, most))}
	}
	return nil
}

func validatePods(s *PodSpec, path *field.Path) field.ErrorList {
	errs := validateImage(s.Image, path.Child("image"))
	errs = append(errs, validatePull(s.ImagePullPolicy, path)...)
	if s.Replicas != nil {
		errs = append(errs, between(*s.Replicas, 0, maxReplicas, path.Child("replicas"))...)
	}
	for _, msg := range apivalidation.NameIsDNSSubdomain(s.ConfigMapName, false) {
		errs = append(errs, field.Invalid(path.Child("configMapName"), s.ConfigMapName, msg))
	}
	errs = append(errs, validateSecrets(s.ImagePullSecrets, path)...)
	errs = append(errs, validateResources(s.Resources, path.Child("resources"))...)
	errs = append(errs, validatePartTLS(s.TLS, path)...)
	return append(errs, validatePlace(s.NodeSelector, s.Tolerations, path)...)
}

func validateSecrets(list []corev1.LocalObjectReference, path *field.Path) (errs field.ErrorList) {
	for i, s := range list {
		for _, msg := range apivalidation.NameIsDNSSubdomain(s.Name, false) {
			errs = append(errs, field.Invalid(path.Child("imagePullSecrets").Index(i).Child("name"), s.Name, msg))
		}
	}
	return errs
}

func validatePull(p corev1.PullPolicy, path *field.Path) field.ErrorList {
	switch p {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		return nil
	}
	return field.ErrorList{
		field.NotSupported(path.Child("imagePullPolicy"), p, []corev1.PullPolicy{
			corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever,
		}),
	}
}

func validateImage(image string, path *field.Path) field.ErrorList {
	switch {
	case image == "":
		return field.ErrorList{field.Required(path, "name an image")}
	case strings.TrimSpace(image) != image:
		return field.ErrorList{field.Invalid(path, image, "must not have leading or trailing whitespace")}
	case len(image) > maxImage:
		return field.ErrorList{field.TooLong(path, "", maxImage)}
	}
	return nil
}

func validateResources(r corev1.ResourceRequirements, path *field.Path) (errs field.ErrorList) {
	for name, list := range map[string]corev1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for resource, q := range list {
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(path.Child(name).Key(string(resource)), q.String(), "must not be negative"))
			}
		}
	}
	for resource, limit := range r.Limits {
		if request, ok := r.Requests[resource]; ok && request.Cmp(limit) > 0 {
			errs = append(errs,
				field.Invalid(path.Child("requests").Key(string(resource)), request.String(),
					"must not exceed the limit "+limit.String()))
		}
	}
	return errs
}

func validatePlace(selector map[string]string, tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	errs := unversioned.ValidateLabels(selector, path.Child("nodeSelector"))
	for i, t := range tolerations {
		switch t.Operator {
		case "", corev1.TolerationOpEqual, corev1.TolerationOpExists:
		default:
			errs = append(errs, field.NotSupported(path.Child("tolerations").Index(i).Child("operator"), t.Operator,
				[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
	}
	return errs
}

func validateService(t corev1.ServiceType, path *field.Path) field.ErrorList {
	switch t {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return nil
	}
	return field.ErrorList{field.NotSupported(path.Child("serviceType"), t,
		[]corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer})}
}

func validateHost(host string, path *field.Path) (errs field.ErrorList) {
	if host == "" {
		return nil
	}
	for _, msg := range validation.IsDNS1123Subdomain(host) {
		errs = append(errs, field.Invalid(path, host, msg))
	}
	return errs
}

func validateWorker(w *BuildbarnWorker, path *field.Path) field.ErrorList {
	s := &w.Spec
	errs := validateImage(s.RunnerImage, path.Child("runnerImage"))
	errs = append(errs, validateImage(s.RunnerInstallerImage, path.Child("runnerInstallerImage"))...)
	errs = append(errs, validateImage(s.VolumeInitImage, path.Child("volumeInitImage"))...)
	errs = append(errs, validateResources(s.RunnerResources, path.Child("runnerResources"))...)
	errs = append(errs, between(s.DrainSeconds, 1, maxSeconds, path.Child("drainSeconds"))...)
	// The instance is part of file names and a label value.
	for _, msg := range validation.IsDNS1123Label(s.Instance) {
		errs = append(errs, field.Invalid(path.Child("instance"), s.Instance, msg))
	}
	r := s.Scale
	if r == nil {
		return errs
	}
	at := path.Child("scale")
	if s.Replicas != nil {
		errs = append(errs, field.Invalid(at, "", "may not be set when replicas is set"))
	}
	errs = append(errs, validateRange(r.Min, r.Max, r.IdleSeconds, r.IntervalSeconds, at)...)
	errs = append(errs, between(r.Concurrency, 1, maxReplicas, at.Child("concurrency"))...)
	for _, msg := range apivalidation.NameIsDNS1035Label(r.Scheduler, false) {
		errs = append(errs, field.Invalid(at.Child("scheduler"), r.Scheduler, msg))
	}
	return append(errs, validatePlatform(r.InstanceNamePrefix, r.Platform, at)...)
}

func validateRange(least, most, idle, interval int32, at *field.Path) field.ErrorList {
	errs := between(most, 1, maxReplicas, at.Child("max"))
	errs = append(errs, between(least, 0, max(most, 0), at.Child("min"))...)
	errs = append(errs, between(idle, 1, maxSeconds, at.Child("idleSeconds"))...)
	return append(errs, between(interval, 1, 600, at.Child("intervalSeconds"))...)
}

// validatePlatform validates the fields that identify a queue. As in the Remote Execution API, instance names must
// not have empty or reserved components.
func validatePlatform(prefix string, list []PlatformProperty, at *field.Path) (errs field.ErrorList) {
	if prefix != "" {
		for _, word := range strings.Split(prefix, "/") {
			switch word {
			case "", "blobs", "uploads", "actions", "actionResults", "operations", "capabilities", "compressed-blobs":
				errs = append(errs,
					field.Invalid(at.Child("instanceNamePrefix"), prefix, fmt.Sprintf("may not have %q between slashes", word)))
			}
		}
		if len(prefix) > maxImage {
			errs = append(errs, field.TooLong(at.Child("instanceNamePrefix"), "", maxImage))
		}
	}
	if len(list) > maxProperties {
		return append(errs, field.TooMany(at.Child("platform"), len(list), maxProperties))
	}
	seen := map[PlatformProperty]bool{}
	for i, p := range list {
		one := at.Child("platform").Index(i)
		if p.Name == "" {
			errs = append(errs, field.Required(one.Child("name"), ""))
		}
		if len(p.Name)+len(p.Value) > 1024 {
			errs = append(errs, field.TooLong(one, "", 1024))
		}
		if seen[p] {
			errs = append(errs, field.Duplicate(one, p.Name))
		}
		seen[p] = true
	}
	return errs
}

func validateStorage(s *BuildbarnStorage, path *field.Path) field.ErrorList {
	errs := validateImage(s.Spec.VolumeInitImage, path.Child("volumeInitImage"))
	errs = append(errs, validateClaims(s.Spec.ClaimPolicy, s.Spec.CASSize, s.Spec.ACSize, path)...)
	if s.Spec.Mirrored && s.Spec.Replicas != nil && *s.Spec.Replicas%2 != 0 {
		errs = append(errs, field.Invalid(path.Child("replicas"), *s.Spec.Replicas, "must be even for mirrored storage"))
	}
	if n := len(s.Spec.VolumeClaimTemplates); n > 0 {
		at, names := path.Child("volumeClaimTemplates"), map[string]bool{}
		if s.Spec.CASSize != nil || s.Spec.ACSize != nil || s.Spec.StorageClassName != nil {
			errs = append(errs, field.Forbidden(at, "may not be set together with casSize, acSize and storageClassName"))
		}
		if n > 16 {
			return append(errs, field.TooMany(at, n, 16))
		}
		for i, t := range s.Spec.VolumeClaimTemplates {
			if names[t.Name] {
				errs = append(errs, field.Duplicate(at.Index(i).Child("metadata", "name"), t.Name))
			}
			names[t.Name] = true
			if q := t.Spec.Resources.Requests[corev1.ResourceStorage]; q.Sign() <= 0 {
				errs = append(errs,
					field.Invalid(at.Index(i).Child("spec", "resources", "requests").Key("storage"), q.String(), "must be positive"))
			}
		}
		for _, name := range []string{"cas", "ac"} {
			if !names[name] {
				errs = append(errs, field.Required(at, "a template named "+name+" is needed"))
			}
		}
	}
	return errs
}

func validateClaims(policy ClaimPolicy, cas, ac *resource.Quantity, path *field.Path) (errs field.ErrorList) {
	switch policy {
	case ClaimsRetain, ClaimsDelete:
	default:
		errs = append(errs, field.NotSupported(path.Child("claimPolicy"), policy, []ClaimPolicy{ClaimsRetain, ClaimsDelete}))
	}
	if cas != nil && cas.Cmp(minCAS) < 0 {
		errs = append(errs, field.Invalid(path.Child("casSize"), cas.String(), "must be at least "+minCAS.String()))
	}
	if ac != nil && ac.Cmp(minAC) < 0 {
		errs = append(errs, field.Invalid(path.Child("acSize"), ac.String(), "must be at least "+minAC.String()))
	}
	return errs
}

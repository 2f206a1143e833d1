package v1alpha1

import (
	"fmt"
	"net/url"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxFarmName = 40
	maxPoolName = 14 // with the farm's name and "-worker-" it must fit into a label value
	maxPools    = 64
	maxShards   = 500
)

// ValidateFarm validates a farm, except for most of its metadata.
func ValidateFarm(b *Buildbarn) field.ErrorList {
	path, s := field.NewPath("spec"), &b.Spec
	errs := validateName(b.Name, maxFarmName)
	images := path.Child("images")
	for name, image := range map[string]string{
		"scheduler": s.Images.Scheduler, "worker": s.Images.Worker, "storage": s.Images.Storage,
		"runnerInstaller": s.Images.RunnerInstaller, "runner": s.Images.Runner, "volumeInit": s.Images.VolumeInit,
	} {
		errs = append(errs, validateImage(image, images.Child(name))...)
	}
	if s.Images.Browser != "" {
		errs = append(errs, validateImage(s.Images.Browser, images.Child("browser"))...)
	} else if !equality.Semantic.DeepEqual(s.Browser, FarmBrowser{}) {
		errs = append(errs, field.Required(images.Child("browser"), "without its image the farm has no browser"))
	}
	errs = append(errs, validatePull(s.ImagePullPolicy, path)...)
	errs = append(errs, validateSecrets(s.ImagePullSecrets, path)...)
	errs = append(errs, validateHost(s.Scheduler.IngressHost, path.Child("scheduler", "ingressHost"))...)
	errs = append(errs, validateResources(s.Scheduler.Resources, path.Child("scheduler", "resources"))...)
	errs = append(errs, validateHost(s.Browser.IngressHost, path.Child("browser", "ingressHost"))...)
	errs = append(errs, validateResources(s.Browser.Resources, path.Child("browser", "resources"))...)
	errs = append(errs, validateFarmStorage(&s.Storage, path.Child("storage"))...)
	front := path.Child("frontend")
	if s.Frontend.Replicas != nil {
		errs = append(errs, between(*s.Frontend.Replicas, 0, maxReplicas, front.Child("replicas"))...)
	}
	errs = append(errs, validateService(s.Frontend.ServiceType, front)...)
	errs = append(errs, validateResources(s.Frontend.Resources, front.Child("resources"))...)
	errs = append(errs, validatePools(s.Workers, path.Child("workers"))...)
	errs = append(errs, validateFarmTLS(s.TLS, path)...)
	return append(errs, validateConfig(&s.Config, path.Child("config"))...)
}

func validateFarmStorage(s *FarmStorage, path *field.Path) field.ErrorList {
	errs := validateClaims(s.ClaimPolicy, s.CASSize, s.ACSize, path)
	if s.Shards != nil {
		errs = append(errs, between(*s.Shards, 1, maxShards, path.Child("shards"))...)
	}
	return append(errs, validateResources(s.Resources, path.Child("resources"))...)
}

func validatePools(list []FarmWorkers, path *field.Path) (errs field.ErrorList) {
	if len(list) > maxPools {
		return field.ErrorList{field.TooMany(path, len(list), maxPools)}
	}
	names := map[string]bool{}
	for i := range list {
		w, at := &list[i], path.Index(i)
		for _, msg := range validation.IsDNS1123Label(w.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), w.Name, msg))
		}
		if len(w.Name) > maxPoolName {
			errs = append(errs,
				field.Invalid(at.Child("name"), w.Name, fmt.Sprintf("must be no more than %d characters", maxPoolName)))
		}
		if names[w.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), w.Name))
		}
		names[w.Name] = true
		// The scheduler has one queue per platform and would reject a second.
		for j := range i {
			if list[j].InstanceNamePrefix == w.InstanceNamePrefix && samePlatform(list[j].Platform, w.Platform) {
				errs = append(errs,
					field.Invalid(at.Child("platform"), w.Name,
						fmt.Sprintf("the pool %s has the same platform and instanceNamePrefix: use one pool, or make them differ",
							list[j].Name)))
			}
		}
		errs = append(errs, validatePlatform(w.InstanceNamePrefix, w.Platform, at)...)
		errs = append(errs, between(w.Concurrency, 1, maxReplicas, at.Child("concurrency"))...)
		errs = append(errs, between(w.DrainSeconds, 1, maxSeconds, at.Child("drainSeconds"))...)
		if w.RunnerImage != "" {
			errs = append(errs, validateImage(w.RunnerImage, at.Child("runnerImage"))...)
		}
		if w.Replicas != nil {
			errs = append(errs, between(*w.Replicas, 0, maxReplicas, at.Child("replicas"))...)
		}
		if r := w.Scale; r != nil {
			if w.Replicas != nil {
				errs = append(errs, field.Invalid(at.Child("scale"), "", "may not be set when replicas is set"))
			}
			errs = append(errs, validateRange(r.Min, r.Max, r.IdleSeconds, r.IntervalSeconds, at.Child("scale"))...)
		}
		errs = append(errs, validateResources(w.Resources, at.Child("resources"))...)
		errs = append(errs, validateResources(w.RunnerResources, at.Child("runnerResources"))...)
		errs = append(errs, validatePlace(w.NodeSelector, w.Tolerations, at)...)
	}
	return errs
}

func samePlatform(a, b []PlatformProperty) bool {
	count := map[PlatformProperty]int{}
	for _, p := range a {
		count[p]++
	}
	other := map[PlatformProperty]int{}
	for _, p := range b {
		other[p]++
	}
	return reflect.DeepEqual(count, other)
}

func validateConfig(c *FarmConfig, path *field.Path) field.ErrorList {
	errs := between(c.MaximumMessageSizeBytes, 64<<10, 256<<20, path.Child("maximumMessageSizeBytes"))
	errs = append(errs, between(c.MaximumTreeSizeBytes, 1<<20, 1<<30, path.Child("maximumTreeSizeBytes"))...)
	errs = append(errs, between(c.MaximumExecutionSeconds, 1, maxSeconds, path.Child("maximumExecutionSeconds"))...)
	errs = append(errs,
		between(c.DefaultExecutionSeconds, 1, max(c.MaximumExecutionSeconds, 1), path.Child("defaultExecutionSeconds"))...)
	errs = append(errs, between(c.WorkerCacheBytes, 1<<20, 1<<50, path.Child("workerCacheBytes"))...)
	errs = append(errs, between(c.WorkerCacheFiles, 1, 1<<31, path.Child("workerCacheFiles"))...)
	errs = append(errs, between(c.PersistSeconds, 1, maxSeconds, path.Child("persistSeconds"))...)
	if c.BrowserURL != "" {
		if u, err := url.Parse(c.BrowserURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			errs = append(errs, field.Invalid(path.Child("browserURL"), c.BrowserURL, "must be an http or https URL"))
		}
	}
	return errs
}

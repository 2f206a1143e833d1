package v1alpha1

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	defaultShell  = "busybox:1.36"
	defaultDrain  = 1800
	defaultIdle   = 60
	defaultPeriod = 5
)

// Default images: those that the Buildbarn project publishes and runs together (the table in the README of
// github.com/buildbarn/bb-deployments, 2026-03-26).
const (
	ImageStorage   = "ghcr.io/buildbarn/bb-storage:20260326T151518Z-d0c6f26"
	ImageScheduler = "ghcr.io/buildbarn/bb-scheduler:20260326T163248Z-e6ab874"
	ImageWorker    = "ghcr.io/buildbarn/bb-worker:20260326T163248Z-e6ab874"
	ImageInstaller = "ghcr.io/buildbarn/bb-runner-installer:20260326T163248Z-e6ab874"
	ImageBrowser   = "ghcr.io/buildbarn/bb-browser:20260319T101727Z-1731858"
	imageRunner    = defaultShell
)

func set[T comparable](v *T, d T) { *v = cmp.Or(*v, d) }

func setPtr[T any](v **T, d T) {
	if *v == nil {
		*v = &d
	}
}

func defaultPods(p *PodSpec, image string, replicas int32) {
	set(&p.Image, image)
	set(&p.ImagePullPolicy, corev1.PullIfNotPresent)
	set(&p.ConfigMapName, DefaultConfigMap)
	setPtr(&p.Replicas, replicas)
}

// DefaultScheduler sets the defaults. All functions in this file are idempotent.
func DefaultScheduler(s *BuildbarnScheduler) {
	defaultPods(&s.Spec.PodSpec, ImageScheduler, 1)
	set(&s.Spec.ServiceType, corev1.ServiceTypeClusterIP)
}

// DefaultWorker sets the defaults.
func DefaultWorker(w *BuildbarnWorker) {
	if w.Spec.Scale == nil {
		setPtr(&w.Spec.Replicas, 1)
	}
	replicas := w.Spec.Replicas
	defaultPods(&w.Spec.PodSpec, ImageWorker, 1)
	w.Spec.Replicas = replicas
	set(&w.Spec.RunnerImage, imageRunner)
	set(&w.Spec.RunnerInstallerImage, ImageInstaller)
	set(&w.Spec.VolumeInitImage, defaultShell)
	set(&w.Spec.Instance, DefaultInstance)
	set(&w.Spec.DrainSeconds, defaultDrain)
	if r := w.Spec.Scale; r != nil {
		set(&r.Concurrency, 1)
		set(&r.IdleSeconds, defaultIdle)
		set(&r.IntervalSeconds, defaultPeriod)
	}
}

// DefaultStorage sets the defaults.
func DefaultStorage(s *BuildbarnStorage) {
	defaultPods(&s.Spec.PodSpec, ImageStorage, 2)
	set(&s.Spec.VolumeInitImage, defaultShell)
	set(&s.Spec.ClaimPolicy, ClaimsRetain)
	if len(s.Spec.VolumeClaimTemplates) == 0 {
		setPtr(&s.Spec.CASSize, resource.MustParse("33Gi"))
		setPtr(&s.Spec.ACSize, resource.MustParse("1Gi"))
	}
}

// DefaultFrontend sets the defaults.
func DefaultFrontend(f *BuildbarnFrontend) {
	defaultPods(&f.Spec.PodSpec, ImageStorage, 1)
	set(&f.Spec.ServiceType, corev1.ServiceTypeLoadBalancer)
}

// DefaultBrowser sets the defaults.
func DefaultBrowser(b *BuildbarnBrowser) {
	defaultPods(&b.Spec.PodSpec, ImageBrowser, 1)
	set(&b.Spec.ServiceType, corev1.ServiceTypeClusterIP)
	setPtr(&b.Spec.Ingress, true)
}

// DefaultFarm sets the defaults.
func DefaultFarm(b *Buildbarn) {
	s := &b.Spec
	set(&s.Images.Scheduler, ImageScheduler)
	set(&s.Images.Worker, ImageWorker)
	set(&s.Images.Storage, ImageStorage)
	set(&s.Images.RunnerInstaller, ImageInstaller)
	set(&s.Images.Runner, imageRunner)
	set(&s.Images.VolumeInit, defaultShell)
	set(&s.ImagePullPolicy, corev1.PullIfNotPresent)
	setPtr(&s.Storage.Shards, 2)
	setPtr(&s.Storage.CASSize, resource.MustParse("33Gi"))
	setPtr(&s.Storage.ACSize, resource.MustParse("1Gi"))
	set(&s.Storage.ClaimPolicy, ClaimsRetain)
	setPtr(&s.Frontend.Replicas, 1)
	set(&s.Frontend.ServiceType, corev1.ServiceTypeLoadBalancer)
	if len(s.Workers) == 0 {
		s.Workers = []FarmWorkers{{Name: "default"}}
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		set(&w.Concurrency, 1)
		set(&w.DrainSeconds, defaultDrain)
		if w.Scale == nil {
			setPtr(&w.Replicas, 1)
		} else {
			set(&w.Scale.IdleSeconds, defaultIdle)
			set(&w.Scale.IntervalSeconds, defaultPeriod)
		}
	}
	defaultFarmTLS(s.TLS)
	c := &s.Config
	set(&c.MaximumMessageSizeBytes, 2<<20)
	set(&c.MaximumTreeSizeBytes, 64<<20)
	set(&c.DefaultExecutionSeconds, 1800)
	set(&c.MaximumExecutionSeconds, max(7200, c.DefaultExecutionSeconds))
	set(&c.WorkerCacheBytes, 1<<30)
	set(&c.WorkerCacheFiles, 10_000)
	set(&c.PersistSeconds, 300)
}

// DefaultPart sets the defaults of a part.
func DefaultPart(p Part) {
	switch p := p.(type) {
	case *BuildbarnScheduler:
		DefaultScheduler(p)
	case *BuildbarnWorker:
		DefaultWorker(p)
	case *BuildbarnStorage:
		DefaultStorage(p)
	case *BuildbarnFrontend:
		DefaultFrontend(p)
	case *BuildbarnBrowser:
		DefaultBrowser(p)
	}
}

// HostOf returns the host of a part's Ingress, or "" if it has none.
func HostOf(p Part) string {
	switch p := p.(type) {
	case *BuildbarnScheduler:
		return cmp.Or(p.Spec.IngressHost, "bb-scheduler."+p.Namespace)
	case *BuildbarnBrowser:
		if p.Spec.Ingress != nil && !*p.Spec.Ingress {
			return ""
		}
		return cmp.Or(p.Spec.IngressHost, "bb-browser."+p.Namespace)
	}
	return ""
}

// Labels returns the labels that select a part's pods.
func Labels(p Part) map[string]string {
	return map[string]string{LabelApp: p.Component(), LabelPart: p.GetName()}
}

package pod

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// metrics have the kubelet's names, except for the steps of a start, which the kubelet does not measure.
type metrics struct {
	sli, started prometheus.Histogram
	// For pods with user namespaces: sandbox setups, and failures of the actions that start the pod.
	userNamespaced, userNamespacedErrors prometheus.Counter
	steps                                map[string]prometheus.Observer
	failures                             map[string]prometheus.Counter
}

// The parts of a Start action.
const (
	stepImage  = "image"
	stepCreate = "create"
	stepRun    = "run"
	stepHook   = "poststart"
)

func newMetrics(reg prometheus.Registerer, m *Manager) *metrics {
	with := promauto.With(reg)
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 300}
	steps := with.NewHistogramVec(prometheus.HistogramOpts{Name: "coracle_pod_step_duration_seconds",
		Help: "Duration of the steps that start and stop pods. The step start is for one container, and consists of " +
			"image, create, run and poststart.",
		Buckets: seconds}, []string{"step"})
	failures := with.NewCounterVec(prometheus.CounterOpts{
		Name: "coracle_pod_step_failures_total", Help: "Steps of pods that failed and are repeated.",
	}, []string{"step"})
	out := &metrics{
		sli: with.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pod_start_sli_duration_seconds",
			Help: "Duration in seconds to start a pod, excluding time to pull images, measured from pod creation timestamp " +
				"(which has whole seconds) to when all its containers are reported as started. Pods with init containers are " +
				"left out.",
			Buckets: []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800}}),
		started: with.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pod_start_duration_seconds",
			Help:    "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			Buckets: seconds}),
		userNamespaced: with.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_user_namespaced_pods_total",
			Help: "Cumulative number of pods with user namespaces started"}),
		userNamespacedErrors: with.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_errors_total",
			Help: "Cumulative number of errors when starting pods with user namespaces",
		}),
		steps: map[string]prometheus.Observer{}, failures: map[string]prometheus.Counter{},
	}
	for _, step := range []string{
		string(SetupSandbox), string(MountVolumes), string(Start), stepImage, stepCreate, stepRun, stepHook,
		string(Kill), string(Allocate), string(Resize), string(Remove), string(Release), string(Delete),
	} {
		out.steps[step] = steps.WithLabelValues(step)
		out.failures[step] = failures.WithLabelValues(step)
	}
	if reg != nil {
		reg.MustRegister(collector{m}, m.guard.Metrics())
	}
	return out
}

func (m *metrics) step(name string, took time.Duration, failed bool) {
	m.steps[name].Observe(took.Seconds())
	if failed {
		m.failures[name].Inc()
	}
}

func (m *metrics) action(p *corev1.Pod, kind Kind, failed bool) {
	if !ownUsers(p) {
		return
	}
	if kind == SetupSandbox {
		m.userNamespaced.Inc()
	}
	if failed && (kind == SetupSandbox || kind == MountVolumes || kind == Start) {
		m.userNamespacedErrors.Inc()
	}
}

// laps times the parts of one action: each call ends one part and begins the next.
func (m *metrics) laps() func(part string) time.Duration {
	began := time.Now()
	return func(part string) time.Duration {
		took := time.Since(began)
		m.steps[part].Observe(took.Seconds())
		began = began.Add(took)
		return took
	}
}

// birth holds the state for the metrics of a pod's start.
type birth struct {
	seen    time.Time    // when the agent first saw the pod
	pulling atomic.Int64 // nanoseconds spent on image pulls
	counted bool         // owned by the sync loop
}

// reported counts the start of a pod when its status first says Running. Only the sync loop calls it.
func (w *worker) reported(p *corev1.Pod, now corev1.PodPhase) {
	before := p.Status.Phase
	if w.birth.counted || now != corev1.PodRunning || before != corev1.PodPending && before != "" {
		return
	}
	w.birth.counted = true
	w.m.metrics.started.Observe(time.Since(w.birth.seen).Seconds())
	if created := p.CreationTimestamp; !created.IsZero() && len(p.Spec.InitContainers) == 0 {
		w.m.metrics.sli.Observe(max(0, time.Since(created.Time)-time.Duration(w.birth.pulling.Load())).Seconds())
	}
}

//nolint:gochecknoglobals // constants
var (
	descPods       = prometheus.NewDesc("kubelet_running_pods", "Number of pods that have a running container", nil, nil)
	descContainers = prometheus.NewDesc("kubelet_running_containers",
		"Number of containers currently known to the runtime, by state", []string{"container_state"}, nil)
	descWorkers = prometheus.NewDesc("kubelet_desired_pods", "Number of pods that the node knows", nil, nil)

	// Block volumes have only the first one, the capacity.
	descVolumes = []struct {
		desc  *prometheus.Desc
		value func(VolumeSpace) uint64
	}{
		{volumeDesc("capacity_bytes", "Capacity in bytes of the volume"), func(s VolumeSpace) uint64 { return s.Capacity }},
		{
			volumeDesc("available_bytes", "Number of available bytes in the volume"),
			func(s VolumeSpace) uint64 { return s.Available },
		},
		{volumeDesc("used_bytes", "Number of used bytes in the volume"), func(s VolumeSpace) uint64 { return s.Used }},
		{volumeDesc("inodes", "Maximum number of inodes in the volume"), func(s VolumeSpace) uint64 { return s.Inodes }},
		{
			volumeDesc("inodes_free", "Number of free inodes in the volume"), func(s VolumeSpace) uint64 { return s.InodesFree },
		},
		{
			volumeDesc("inodes_used", "Number of used inodes in the volume"), func(s VolumeSpace) uint64 { return s.InodesUsed },
		},
	}
)

func volumeDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, help, []string{"namespace", "persistentvolumeclaim"}, nil)
}

type collector struct{ m *Manager }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPods, descContainers, descWorkers} {
		ch <- d
	}
	for _, v := range descVolumes {
		ch <- v.desc
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	states := map[string]int{"running": 0, "exited": 0, "created": 0}
	running := map[string]bool{}
	c.m.containers.each(func(container runtime.Container) {
		switch container.State {
		case runtime.Running:
			running[container.PodUID] = true
			states["running"]++
		case runtime.Exited:
			states["exited"]++
		default:
			states["created"]++
		}
	})
	pods := len(running)
	c.m.mu.Lock()
	known := len(c.m.workers)
	c.m.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descPods, prometheus.GaugeValue, float64(pods))
	ch <- prometheus.MustNewConstMetric(descWorkers, prometheus.GaugeValue, float64(known))
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descContainers, prometheus.GaugeValue, float64(n), state)
	}
	claims := map[types.NamespacedName]bool{} // pods may share a claim
	for _, s := range c.m.VolumeSpaces() {
		claim := types.NamespacedName{Namespace: s.Pod.Namespace, Name: s.Claim}
		if claims[claim] {
			continue
		}
		claims[claim] = true
		all := descVolumes
		if s.Block {
			all = all[:1] // the kubelet reports zeros, which look like a full volume
		}
		for _, v := range all {
			ch <- prometheus.MustNewConstMetric(v.desc, prometheus.GaugeValue, float64(v.value(s)), claim.Namespace, claim.Name)
		}
	}
}

package scheduler

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics has upstream's names and labels.
type metrics struct {
	scheduled, unschedulable, failed result
	sli                              *prometheus.HistogramVec
	preemptions                      prometheus.Counter
	victims                          prometheus.Histogram
}

// result counts the attempts with one result, by profile.
type result struct {
	attempts *prometheus.CounterVec
	duration prometheus.ObserverVec
}

func (r result) count(p *pending) {
	r.attempts.WithLabelValues(p.info.profile.name).Inc()
	r.duration.WithLabelValues(p.info.profile.name).Observe(time.Since(p.tried).Seconds())
}

func newMetrics(reg prometheus.Registerer, s *Scheduler) *metrics {
	with := promauto.With(reg)
	attempts := with.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_schedule_attempts_total",
		Help: "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, " +
			"while 'error' means an internal scheduler problem."},
		[]string{"result", "profile"})
	duration := with.NewHistogramVec(prometheus.HistogramOpts{Name: "scheduler_scheduling_attempt_duration_seconds",
		Help:    "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10)},
		[]string{"result", "profile"})
	m := &metrics{
		sli: with.NewHistogramVec(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_sli_duration_seconds",
			Help: "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might " +
				"involve multiple scheduling attempts.",
			Buckets: prometheus.ExponentialBuckets(0.001, 3, 14)}, []string{"attempts"}),
		preemptions: with.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total", Help: "Total preemption attempts in the cluster till now",
		}),
		victims: with.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_preemption_victims", Help: "Number of selected preemption victims",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
	}
	of := func(name string) result {
		by := prometheus.Labels{"result": name}
		r := result{attempts.MustCurryWith(by), duration.MustCurryWith(by)}
		// Create the series at the start, so that a rate includes the first attempt.
		r.attempts.WithLabelValues(defaultProfiles[0].name)
		r.duration.WithLabelValues(defaultProfiles[0].name)
		return r
	}
	m.scheduled, m.unschedulable, m.failed = of("scheduled"), of("unschedulable"), of("error")
	if reg != nil {
		reg.MustRegister(collector{s}, s.guard.Metrics(), s.events.Metrics())
	}
	return m
}

// mostAttempts is the largest number of attempts with a label value of its own, as upstream.
const mostAttempts = 15

func (m *metrics) bound(p *pending) {
	m.scheduled.count(p)
	label := strconv.Itoa(p.attempts + 1)
	if p.attempts+1 >= mostAttempts {
		label = strconv.Itoa(mostAttempts) + "+"
	}
	m.sli.WithLabelValues(label).Observe(time.Since(p.since).Seconds())
}

var descPending = prometheus.NewDesc("scheduler_pending_pods", //nolint:gochecknoglobals // a constant
	"Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of "+
		"pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to "+
		"schedule and failed; 'underway' those being placed or bound.",
	[]string{"queue"}, nil)

type collector struct{ s *Scheduler }

func (collector) Describe(ch chan<- *prometheus.Desc) { ch <- descPending }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	var n [4]int
	c.s.mu.Lock()
	for _, p := range c.s.queue.pods {
		n[p.where]++
	}
	c.s.mu.Unlock()
	for w, name := range queueNames {
		ch <- prometheus.MustNewConstMetric(descPending, prometheus.GaugeValue, float64(n[w]), name)
	}
}

var queueNames = [...]string{
	active:        "active",
	backingOff:    "backoff",
	unschedulable: "unschedulable",
	underway:      "underway",
} //nolint:gochecknoglobals // a constant

// Pending describes a pod without a node.
type Pending struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Since     time.Time `json:"since"`
	Queue     string    `json:"queue"`
	Attempts  int       `json:"attempts"`
	// Reason is why the last attempt failed, as in the pod's PodScheduled condition. Empty before the first attempt.
	Reason string `json:"reason,omitempty"`
}

// Pending returns at most limit pods without a node, the longest waiting first, and their total number.
func (s *Scheduler) Pending(limit int) (pods []Pending, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.queue.pods {
		pods = append(pods, Pending{
			Namespace: p.info.pod.Namespace, Name: p.info.pod.Name, Since: p.since, Queue: queueNames[p.where],
			Attempts: p.attempts, Reason: p.reported,
		})
	}
	slices.SortFunc(pods, func(a, b Pending) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	all = len(pods)
	return pods[:min(limit, all)], all
}

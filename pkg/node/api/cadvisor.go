package api

import (
	"math"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// containerMetric is one of cAdvisor's metrics of containers. Its value is NaN if the kernel, or the container, does
// not have it.
type containerMetric struct {
	name, kind, help, label string
	of                      func(runtime.Stats) float64
}

// cadvisorMetrics returns the metrics that dashboards and alerts for Kubernetes use, with cAdvisor's names and units.
func cadvisorMetrics() []containerMetric {
	limited := func(u runtime.Stats, value float64) float64 { // of containers with a CPU limit
		if u.Periods == 0 {
			return math.NaN()
		}
		return value
	}
	all := []containerMetric{
		{"container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.", `,cpu="total"`,
			func(u runtime.Stats) float64 { return u.CPU.Seconds() }},
		{"container_cpu_cfs_periods_total", "counter", "Number of elapsed enforcement period intervals.", "",
			func(u runtime.Stats) float64 { return limited(u, float64(u.Periods)) }},
		{"container_cpu_cfs_throttled_periods_total", "counter", "Number of throttled period intervals.", "",
			func(u runtime.Stats) float64 { return limited(u, float64(u.ThrottledPeriods)) }},
		{"container_cpu_cfs_throttled_seconds_total", "counter", "Time that the container was throttled, in seconds.", "",
			func(u runtime.Stats) float64 { return limited(u, u.Throttled.Seconds()) }},
		{"container_memory_usage_bytes", "gauge", "Current memory usage in bytes, with page cache.", "",
			func(u runtime.Stats) float64 { return float64(u.Memory) }},
		{"container_memory_working_set_bytes", "gauge", "Current working set in bytes.", "",
			func(u runtime.Stats) float64 { return float64(u.WorkingSet) }},
		{"container_memory_rss", "gauge", "Size of RSS in bytes.", "",
			func(u runtime.Stats) float64 { return float64(u.RSS) }},
		{"container_memory_cache", "gauge", "Number of bytes of page cache memory.", "",
			func(u runtime.Stats) float64 { return float64(u.Cache) }},
		{"container_memory_swap", "gauge", "Container swap usage in bytes.", "",
			func(u runtime.Stats) float64 { return float64(u.Swap) }},
		{"container_processes", "gauge", "Number of processes and threads running inside the container.", "",
			func(u runtime.Stats) float64 { return float64(u.Pids) }},
	}
	for _, r := range []struct {
		name string
		of   func(*runtime.Pressure) runtime.Stalls
	}{
		{"cpu", func(p *runtime.Pressure) runtime.Stalls { return p.CPU }},
		{"memory", func(p *runtime.Pressure) runtime.Stalls { return p.Memory }},
		{"io", func(p *runtime.Pressure) runtime.Stalls { return p.IO }},
	} {
		stalls := func(u runtime.Stats, which func(runtime.Stalls) runtime.Stall) float64 {
			if u.Pressure == nil {
				return math.NaN()
			}
			return which(r.of(u.Pressure)).Total.Seconds()
		}
		name, help := "container_pressure_"+r.name, " tasks of the container waited for "+r.name+", in seconds."
		all = append(all, containerMetric{name + "_waiting_seconds_total", "counter", "Time in which some" + help, "",
			func(u runtime.Stats) float64 {
				return stalls(u, func(s runtime.Stalls) runtime.Stall { return s.Some })
			},
		}, containerMetric{name + "_stalled_seconds_total", "counter", "Time in which all" + help, "",
			func(u runtime.Stats) float64 {
				return stalls(u, func(s runtime.Stalls) runtime.Stall { return s.Full })
			},
		})
	}
	return all
}

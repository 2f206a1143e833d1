package api

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

// exposition writes metrics in Prometheus's text format. Label values are names of objects, which need no escaping.
type exposition struct{ bytes.Buffer }

func (e *exposition) metric(name, kind, help string) func(labels string, value float64, at time.Time) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	return func(labels string, value float64, at time.Time) {
		if labels != "" {
			labels = "{" + labels + "}"
		}
		e.WriteString(name + labels + " " + strconv.FormatFloat(value, 'g', -1, 64))
		if !at.IsZero() {
			e.WriteString(" " + strconv.FormatInt(at.UnixMilli(), 10))
		}
		e.WriteByte('\n')
	}
}

func (e *exposition) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(e.Bytes())
}

func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	out := s.resources(r.Context())
	out.send(w)
}

// ResourceMetrics returns the text of /metrics/resource, which metrics-server reads (KEP-727).
func (s *Server) ResourceMetrics(ctx context.Context) []byte { return s.resources(ctx).Bytes() }

func (s *Server) resources(ctx context.Context) *exposition {
	usages := s.usages(ctx)
	type sum struct {
		labels      string
		cpu, memory float64
		at          time.Time
	}
	var pods []*sum
	byPod := map[types.UID]*sum{}
	for _, u := range usages {
		p := byPod[u.pod.UID]
		if p == nil {
			p = &sum{labels: fmt.Sprintf("namespace=%q,pod=%q", u.pod.Namespace, u.pod.Name)}
			byPod[u.pod.UID], pods = p, append(pods, p)
		}
		p.cpu, p.memory, p.at = p.cpu+u.stats.CPU.Seconds(), p.memory+float64(u.stats.MemoryWorkingSet), u.stats.At
	}
	labels := func(u usage) string {
		return fmt.Sprintf("container=%q,namespace=%q,pod=%q", u.container, u.pod.Namespace, u.pod.Name)
	}
	var out exposition
	add := out.metric("container_cpu_usage_seconds_total", "counter",
		"Cumulative cpu time consumed by the container in core-seconds")
	for _, u := range usages {
		add(labels(u), u.stats.CPU.Seconds(), u.stats.At)
	}
	add = out.metric("container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes")
	for _, u := range usages {
		add(labels(u), float64(u.stats.MemoryWorkingSet), u.stats.At)
	}
	add = out.metric("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds")
	for _, u := range usages {
		add(labels(u), float64(u.started.UnixMilli())/1000, time.Time{})
	}
	add = out.metric("pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds")
	for _, p := range pods {
		add(p.labels, p.cpu, p.at)
	}
	add = out.metric("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes")
	for _, p := range pods {
		add(p.labels, p.memory, p.at)
	}
	failed := 0.0
	now := time.Now()
	if cpu, memory, _, err := machineUsage(); err != nil {
		s.c.Logger.Warn("could not read the machine's usage", "error", err)
		failed = 1
	} else {
		out.metric("node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds")("",
			cpu, now)
		out.metric("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes")("", memory, now)
	}
	out.metric("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 "+
		"otherwise")("", failed, time.Time{})
	return &out
}

// containerMetrics serves /metrics/cadvisor with those cAdvisor metrics that the runtime provides.
func (s *Server) containerMetrics(w http.ResponseWriter, r *http.Request) {
	usages := s.usages(r.Context())
	var out exposition
	write := func(name, kind, help string, value func(usage) float64, more string) {
		add := out.metric(name, kind, help)
		for _, u := range usages {
			status := ""
			for _, c := range u.pod.Status.ContainerStatuses {
				if c.Name == u.container {
					status = c.ContainerID
				}
			}
			id, image := strings.TrimPrefix(status, "containerd://"), ""
			for _, c := range u.pod.Spec.Containers {
				if c.Name == u.container {
					image = c.Image
				}
			}
			add(fmt.Sprintf("container=%q,id=%q,image=%q,name=%q,namespace=%q,pod=%q", u.container, id, image, id,
				u.pod.Namespace, u.pod.Name)+more, value(u), u.stats.At)
		}
	}
	write("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.",
		func(u usage) float64 { return u.stats.CPU.Seconds() }, `,cpu="total"`)
	write("container_memory_usage_bytes", "gauge",
		"Current memory usage in bytes, including all memory regardless of when it was accessed", func(u usage) float64 {
			return float64(u.stats.MemoryUsage)
		}, "")
	write("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", func(u usage) float64 {
		return float64(u.stats.MemoryWorkingSet)
	}, "")
	write("container_memory_rss", "gauge", "Size of RSS in bytes.", func(u usage) float64 {
		return float64(u.stats.MemoryRSS)
	}, "")
	write("container_processes", "gauge", "Number of processes and threads running inside the container.",
		func(u usage) float64 { return float64(u.stats.Pids) }, "")
	write("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.",
		func(u usage) float64 { return float64(u.started.UnixMilli()) / 1000 }, "")
	used := s.c.Usage(r.Context())
	usages = slices.DeleteFunc(usages, func(u usage) bool { return used[u.pod.UID] == nil })
	write("container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container's writable layer.",
		func(u usage) float64 { return float64(used[u.pod.UID].Containers[u.container].Layer.Bytes) }, "")
	s.networkMetrics(r.Context(), &out)
	out.send(w)
}

// networkMetrics writes cAdvisor's metrics of the pods' interfaces.
func (s *Server) networkMetrics(ctx context.Context, out *exposition) {
	all, _, err := s.c.Network.Traffic(ctx)
	if err != nil {
		s.c.Logger.Warn("could not read the interfaces' traffic", "error", err)
	}
	pods := s.c.Pods.Pods()
	for _, m := range []struct {
		what, help string
		of         func(network.Count) uint64
	}{
		{"bytes", "bytes", func(c network.Count) uint64 { return c.Bytes }},
		{"errors", "errors encountered", func(c network.Count) uint64 { return c.Errors }},
		{"packets", "packets", func(c network.Count) uint64 { return c.Packets }},
		{"packets_dropped", "packets dropped", func(c network.Count) uint64 { return c.Dropped }},
	} {
		for _, direction := range []string{"receive", "transmit"} {
			add := out.metric("container_network_"+direction+"_"+m.what+"_total", "counter",
				"Cumulative count of "+m.help+" while "+strings.TrimSuffix(direction, "e")+"ing")
			for _, p := range pods {
				t, has := all[string(p.UID)]
				if !has {
					continue
				}
				count := t.Received
				if direction == "transmit" {
					count = t.Sent
				}
				add(fmt.Sprintf("interface=%q,namespace=%q,pod=%q", t.Interface, p.Namespace, p.Name), float64(m.of(count)),
					time.Time{})
			}
		}
	}
}

// probeMetrics serves /metrics/probes. It includes early failures, which do not count toward a threshold.
func (s *Server) probeMetrics(w http.ResponseWriter, _ *http.Request) {
	names := map[types.UID][2]string{}
	for _, p := range s.c.Pods.Pods() {
		names[p.UID] = [2]string{p.Namespace, p.Name}
	}
	var out exposition
	add := out.metric("prober_probe_total", "counter",
		"Cumulative number of a liveness, readiness or startup probe for a container by result.")
	for _, c := range s.c.Pods.Probes() {
		name, ok := names[c.Pod]
		if !ok {
			continue
		}
		for result, n := range map[string]uint64{"failed": c.Failures, "successful": c.Successes} {
			add(fmt.Sprintf("container=%q,namespace=%q,pod=%q,pod_uid=%q,probe_type=%q,result=%q", c.Container, name[0], name[1],
				c.Pod, c.Kind, result), float64(n), time.Time{})
		}
	}
	out.send(w)
}

// maxProc limits how much of a file in /proc is read, in bytes.
const maxProc = 1 << 20

// machineUsage returns the machine's CPU time since boot without idle time, in seconds, its memory in use that cannot
// be reclaimed, and its available memory, in bytes (proc(5)).
func machineUsage() (cpu, used, available float64, err error) {
	stat, err := bounded.File("/proc/stat", maxProc)
	if err != nil {
		return 0, 0, 0, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, 0, 0, fmt.Errorf("/proc/stat begins with %q instead of the CPU times", line)
	}
	const ticks = 100 // USER_HZ on all supported architectures
	for i, f := range fields[1:min(9, len(fields))] {
		if i == 3 || i == 4 { // idle and iowait
			continue
		}
		n, _ := strconv.ParseFloat(f, 64)
		cpu += n / ticks
	}
	info, err := bounded.File("/proc/meminfo", maxProc)
	if err != nil {
		return 0, 0, 0, err
	}
	for l := range strings.Lines(string(info)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "MemTotal:":
			used = n * 1024
		case "MemAvailable:":
			available = n * 1024
		}
	}
	return cpu, used - available, available, nil
}

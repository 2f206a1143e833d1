package api

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
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
	containers := s.usages(ctx)
	var out exposition
	for _, f := range []struct {
		name, kind, help string
		of               func(runtime.Stats) float64
	}{
		{"cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the %s in core-seconds",
			func(u runtime.Stats) float64 { return u.CPU.Seconds() }},
		{"memory_working_set_bytes", "gauge", "Current working set of the %s in bytes",
			func(u runtime.Stats) float64 { return float64(u.WorkingSet) }},
		{"swap_usage_bytes", "gauge", "Current amount of the %s swap usage in bytes",
			func(u runtime.Stats) float64 { return float64(u.Swap) }},
	} {
		add := out.metric("container_"+f.name, f.kind, fmt.Sprintf(f.help, "container"))
		for _, u := range containers {
			add(u.labels(), f.of(u.stats), u.stats.At)
		}
		add = out.metric("pod_"+f.name, f.kind, fmt.Sprintf(f.help, "pod"))
		for _, u := range byPod(containers) {
			add(u.labels(), f.of(u.stats), u.stats.At)
		}
	}
	add := out.metric("container_swap_limit_bytes", "gauge", "Current amount of the container swap limit in bytes")
	for _, u := range containers {
		if u.stats.SwapLimit != nil {
			add(u.labels(), float64(*u.stats.SwapLimit), u.stats.At)
		}
	}
	add = out.metric("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds")
	for _, u := range containers {
		add(u.labels(), float64(u.started.UnixMilli())/1000, time.Time{})
	}
	s.nodeMetrics(&out)
	return &out
}

func (s *Server) nodeMetrics(out *exposition) {
	failed, now := 0.0, metav1.Now()
	if cpu, memory, _, err := machineUsage(); err != nil {
		s.c.Logger.Warn("could not read the machine's usage", "error", err)
		failed = 1
	} else {
		out.metric("node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds")("",
			cpu, now.Time)
		out.metric("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes")("", memory,
			now.Time)
	}
	if s := swap(now); s != nil {
		out.metric("node_swap_usage_bytes", "gauge", "Current swap usage of the node in bytes")("",
			float64(*s.SwapUsageBytes), now.Time)
	}
	out.metric("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 "+
		"otherwise")("", failed, time.Time{})
}

// labels returns the labels of a container, or of a pod.
func (u usage) labels() string {
	pod := fmt.Sprintf("namespace=%q,pod=%q", u.pod.Namespace, u.pod.Name)
	if u.container == "" {
		return pod
	}
	return fmt.Sprintf("container=%q,", u.container) + pod
}

// byPod returns the sums of the pods' containers, in the order of the containers. A pod's containers are adjacent.
func byPod(containers []usage) []usage {
	var pods []usage
	for _, u := range containers {
		if n := len(pods); n == 0 || pods[n-1].pod.UID != u.pod.UID {
			pods = append(pods, usage{pod: u.pod})
		}
		sum := &pods[len(pods)-1].stats
		sum.CPU, sum.WorkingSet, sum.Swap = sum.CPU+u.stats.CPU, sum.WorkingSet+u.stats.WorkingSet, sum.Swap+u.stats.Swap
		sum.At = u.stats.At
	}
	return pods
}

// containerMetrics serves /metrics/cadvisor with the cAdvisor metrics that the runtime provides.
func (s *Server) containerMetrics(w http.ResponseWriter, r *http.Request) {
	usages, used := s.usages(r.Context()), s.c.Usage(r.Context())
	labels := make([]string, len(usages))
	for i, u := range usages {
		id, image := "", ""
		for _, c := range u.pod.Status.ContainerStatuses {
			if c.Name == u.container {
				id = strings.TrimPrefix(c.ContainerID, "containerd://")
			}
		}
		for _, c := range u.pod.Spec.Containers {
			if c.Name == u.container {
				image = c.Image
			}
		}
		labels[i] = fmt.Sprintf("container=%q,id=%q,image=%q,name=%q,namespace=%q,pod=%q", u.container, id, image, id,
			u.pod.Namespace, u.pod.Name)
	}
	var out exposition
	for _, m := range cadvisorMetrics() {
		add := out.metric(m.name, m.kind, m.help)
		for i, u := range usages {
			if value := m.of(u.stats); !math.IsNaN(value) {
				add(labels[i]+m.label, value, u.stats.At)
			}
		}
	}
	add := out.metric("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.")
	for i, u := range usages {
		add(labels[i], float64(u.started.UnixMilli())/1000, u.stats.At)
	}
	add = out.metric("container_fs_usage_bytes", "gauge",
		"Number of bytes that are consumed by the container's writable layer.")
	for i, u := range usages {
		if disk := used[u.pod.UID]; disk != nil {
			add(labels[i], float64(disk.Containers[u.container].Layer.Bytes), u.stats.At)
		}
	}
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

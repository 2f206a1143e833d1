// Package metrics reads the metrics of Buildbarn's programs: queues, workers, the fill level of storage and its hits.
// Its invariant: responses of pods are bounded, and implausible numbers become zero.
package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

const (
	metricPrefix    = "buildbarn_builder_in_memory_build_queue_"
	metricScheduled = metricPrefix + "tasks_scheduled_total"
	metricQueued    = metricPrefix + "tasks_queued_duration_seconds"
	metricExecuting = metricPrefix + "tasks_executing_duration_seconds"
	metricCreated   = metricPrefix + "workers_created_total"
	metricRemoved   = metricPrefix + "workers_removed_total"
)

const (
	// maxCount is the largest number that is accepted.
	maxCount    = 1 << 30
	maxMetrics  = 1 << 20
	metricsWait = 2 * time.Second
)

// Queue is a scheduler's state for the workers of one platform: queued and executing actions, and worker threads.
type Queue struct {
	Queued, Executing, Workers int32
	// InstanceNamePrefix and Platform identify the queue.
	InstanceNamePrefix string
	Platform           []buildbarn.PlatformProperty
}

// Families are metrics by name.
type Families = map[string]*dto.MetricFamily

// Read reads metrics over HTTP from the address of a pod: at most 1 MiB, within 2 s, without redirects.
func Read(ctx context.Context, address string) (Families, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+net.JoinHostPort(address, strconv.Itoa(int(buildbarn.PortMetrics)))+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 1 << 14},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a redirect, which is not followed") }}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", req.URL, resp.Status)
	}
	return Parse(resp.Body)
}

// Parse parses at most 1 MiB of metrics as text.
func Parse(r io.Reader) (Families, error) {
	limited := &io.LimitedReader{R: r, N: maxMetrics + 1}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(limited)
	if limited.N <= 0 {
		return nil, fmt.Errorf("there are more than %d bytes of metrics", maxMetrics)
	}
	return families, err
}

// Queues returns a scheduler's queues, in the order of their names.
func Queues(families Families) []Queue {
	type key struct{ prefix, platform string }
	type counts struct{ scheduled, started, ended, created, removed float64 }
	all := map[key]*counts{}
	add := func(name string, to func(*counts) *float64) {
		for _, m := range families[name].GetMetric() {
			var k key
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "instance_name_prefix":
					k.prefix = l.GetValue()
				case "platform":
					k.platform = l.GetValue()
				}
			}
			if all[k] == nil {
				all[k] = &counts{}
			}
			*to(all[k]) += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) +
				float64(m.GetSummary().GetSampleCount())
		}
	}
	add(metricScheduled, func(c *counts) *float64 { return &c.scheduled })
	add(metricQueued, func(c *counts) *float64 { return &c.started })
	add(metricExecuting, func(c *counts) *float64 { return &c.ended })
	add(metricCreated, func(c *counts) *float64 { return &c.created })
	add(metricRemoved, func(c *counts) *float64 { return &c.removed })
	out := make([]Queue, 0, len(all))
	for k, c := range all {
		q := Queue{
			Queued:             number(c.scheduled - c.started),
			Executing:          number(c.started - c.ended),
			Workers:            number(c.created - c.removed),
			InstanceNamePrefix: k.prefix,
		}
		var platform struct{ Properties []buildbarn.PlatformProperty }
		_ = json.Unmarshal([]byte(k.platform), &platform) // if invalid, it matches no queue of ours
		q.Platform = config.Sorted(platform.Properties)
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b Queue) int { return compare(a, b) })
	return out
}

func compare(a, b Queue) int {
	switch x, y := fmt.Sprint(a.InstanceNamePrefix, a.Platform), fmt.Sprint(b.InstanceNamePrefix, b.Platform); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// number bounds a difference of counters. It may be anything: pods send the counters, and not all at one instant.
func number(f float64) int32 {
	if !(f > 0) {
		return 0
	}
	return int32(min(f, maxCount))
}

// Of returns the queue that workers serve. It is empty until the first action or worker.
func Of(all []Queue, s *buildbarn.WorkerScale) *Queue {
	want := config.Sorted(s.Platform)
	for i := range all {
		if all[i].InstanceNamePrefix == s.InstanceNamePrefix && slices.Equal(all[i].Platform, want) {
			return &all[i]
		}
	}
	return &Queue{}
}

const (
	metricAllocations = "buildbarn_blobstore_block_device_backed_block_allocator_allocations_total"
	metricReleases    = "buildbarn_blobstore_block_device_backed_block_allocator_releases_total"
	metricOperations  = "buildbarn_blobstore_blob_access_operations_duration_seconds"
)

// blocks is the number of blocks per store in rendered configurations: 8 old, 24 current, and 3 (cas) or 1 (ac) new.
var blocks = map[string]float64{"cas": 35, "ac": 33}

// oldBlocks are the blocks that are not allocated before the others are full. The first write allocates all others.
const oldBlocks = 8

// Fill describes how full a storage pod's stores "cas" and "ac" are. A full store overwrites its oldest data.
func Fill(families Families) map[string]string {
	used := map[string]float64{}
	for name, sign := range map[string]float64{metricAllocations: 1, metricReleases: -1} {
		for _, m := range families[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "storage_type" {
					used[l.GetValue()] += sign * m.GetCounter().GetValue()
				}
			}
		}
	}
	out := map[string]string{}
	for kind, most := range blocks {
		n, ok := used[kind]
		switch first := most - oldBlocks; {
		case !ok:
		case n >= most:
			out[kind] = "full"
		case n > first:
			out[kind] = fmt.Sprintf("%d%% full", int(100*n/most))
		default:
			out[kind] = fmt.Sprintf("under %d%% full", int(100*first/most))
		}
	}
	return out
}

// Hits returns how many action results a frontend was asked for, and how many it found.
func Hits(families Families) (had, asked int64) {
	for _, m := range families[metricOperations].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["storage_type"] != "ac" || labels["operation"] != "Get" ||
			labels["backend_type"] != "completeness_checking" {
			continue
		}
		n := int64(min(m.GetHistogram().GetSampleCount(), maxCount))
		switch labels["grpc_code"] {
		case "OK":
			had, asked = had+n, asked+n
		case "NotFound":
			asked += n
		}
	}
	return had, asked
}

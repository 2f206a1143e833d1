package usage

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxSeries is the maximum number of containers in one reading, more than any node runs.
const maxSeries = 16 << 10

// Sample is the usage of a container or a node at one time.
type Sample struct {
	At      time.Time
	CPU     float64 // CPU seconds since Started
	Memory  float64 // working set, in bytes
	Started time.Time
}

type container struct{ namespace, pod, name string }

// Reading is one reading of a node's usage.
type Reading struct {
	Node       Sample
	Containers map[container]Sample
}

var errTooMany = fmt.Errorf("more than %d containers", maxSeries)

// Parse parses a node's /metrics/resource (KEP-727). Unknown metrics are ignored. Impossible values are an error. A
// sample without a timestamp gets now.
func Parse(text []byte, now time.Time) (*Reading, error) {
	r := &Reading{Containers: map[container]Sample{}}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, labels, value, at, err := series(line, now)
		if err != nil {
			return nil, err
		}
		set := func(s *Sample, field *float64) {
			*field, s.At = value, at
		}
		switch name {
		case "node_cpu_usage_seconds_total":
			set(&r.Node, &r.Node.CPU)
		case "node_memory_working_set_bytes":
			set(&r.Node, &r.Node.Memory)
		case "container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds":
			key := container{labels["namespace"], labels["pod"], labels["container"]}
			s, known := r.Containers[key]
			if !known && len(r.Containers) >= maxSeries {
				return nil, errTooMany
			}
			switch name {
			case "container_cpu_usage_seconds_total":
				set(&s, &s.CPU)
			case "container_memory_working_set_bytes":
				s.Memory = value
			default:
				s.Started = time.UnixMilli(int64(value * 1000))
			}
			r.Containers[key] = s
		}
	}
	return r, nil
}

// mostValue is more seconds or bytes than any machine can report.
const mostValue = 1 << 53

// series parses one line of Prometheus's text format: name{label="value",...} value [time in ms].
func series(line string,
	now time.Time) (name string, labels map[string]string, value float64, at time.Time, err error) {
	var rest string
	if i := strings.IndexByte(line, '{'); i >= 0 {
		name = line[:i]
		if labels, rest, err = parseLabels(line[i+1:]); err != nil {
			return "", nil, 0, at, err
		}
	} else if name, rest, _ = strings.Cut(line, " "); rest == "" {
		return "", nil, 0, at, errors.New("a line without a value")
	}
	fields := strings.Fields(rest)
	if len(fields) < 1 || len(fields) > 2 {
		return "", nil, 0, at, fmt.Errorf("%s: %d values", clip(name), len(fields))
	}
	if value, err = strconv.ParseFloat(fields[0], 64); err != nil || math.IsNaN(value) || value < 0 || value > mostValue {
		return "", nil, 0, at, fmt.Errorf("%s has the invalid value %s", clip(name), clip(fields[0]))
	}
	at = now
	if len(fields) == 2 {
		ms, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return "", nil, 0, at, fmt.Errorf("%s has the invalid timestamp %s", clip(name), clip(fields[1]))
		}
		at = time.UnixMilli(ms)
	}
	return name, labels, value, at, nil
}

// clip limits the text that an error quotes to 64 bytes.
func clip(s string) string {
	return strconv.Quote(bounded.Text(s, 64))
}

// parseLabels parses labels up to the closing brace and returns the rest of the line.
func parseLabels(s string) (labels map[string]string, rest string, err error) {
	labels = make(map[string]string, 3)
	for n := 0; ; n++ {
		s = strings.TrimLeft(s, ", ")
		if strings.HasPrefix(s, "}") {
			return labels, s[1:], nil
		}
		name, value, ok := strings.Cut(s, "=")
		if !ok || n == 16 {
			return nil, "", errors.New("unterminated labels")
		}
		quoted, err := strconv.QuotedPrefix(value)
		if err != nil {
			return nil, "", fmt.Errorf("label %s has no value", clip(name))
		}
		plain, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, "", fmt.Errorf("label %s has no value", clip(name))
		}
		labels[name], s = plain, value[len(quoted):]
	}
}

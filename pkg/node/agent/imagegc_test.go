package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

// TestFullDiskIsExplained checks that the event has upstream's words, what is free and the thresholds.
func TestFullDiskIsExplained(t *testing.T) {
	var events eventList
	a := &Agent{c: Config{Environment: pod.Environment{Recorder: &events}, ImageGCHigh: 85, ImageGCLow: 80}}
	a.reportFull(eviction.Reading{Available: 28 << 30, Capacity: 250 << 30}, 2<<30, 22<<30)
	require.Len(t, events.list(), 1)
	require.Regexp(t, `^FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem `+
		`\(89% of 250\.0 GiB used\)\. .*\(freed 2\.0 GiB\)\. 28\.0 GiB are free; `+
		`beyond image-gc-high-threshold=85%, 20\.0 GiB more are wanted, down to image-gc-low-threshold=80%\.`,
		events.list()[0])
}

package v1alpha1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is a resource that a node can run short of, by the kubelet's name.
type Signal string

// Eviction signals. "available" of a file system is in bytes, "inodesFree" in inodes, "pid.available" in process
// IDs.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"   // the disk of pods' volumes, logs and writable layers
	NodeFsInodesFree  Signal = "nodefs.inodesFree"  //
	ImageFsAvailable  Signal = "imagefs.available"  // the disk of images
	ImageFsInodesFree Signal = "imagefs.inodesFree" //
	PIDAvailable      Signal = "pid.available"
)

// Signals lists the signals in the order in which they are handled.
var Signals = []Signal{
	MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree, PIDAvailable,
}

// Threshold is the minimum that must be available, as an amount or as a percentage of the capacity.
type Threshold struct {
	Amount  int64
	Percent float64 // of the capacity, above 0 and below 100; 0 if Amount is used
}

// Of returns the threshold as an amount, for a capacity.
func (t Threshold) Of(capacity int64) int64 {
	if t.Percent > 0 {
		return int64(float64(capacity) * t.Percent / 100)
	}
	return t.Amount
}

// DefaultThresholds returns the kubelet's thresholds on Linux for memory and inodes. For disks it uses 5 %, as k3s
// does: with the kubelet's 10 and 15 %, which suit servers, pods could not run on many laptops.
func DefaultThresholds() map[Signal]Threshold {
	return map[Signal]Threshold{
		MemoryAvailable: {Amount: 100 << 20}, NodeFsAvailable: {Percent: 5}, NodeFsInodesFree: {Percent: 5},
		ImageFsAvailable: {Percent: 5}, ImageFsInodesFree: {Percent: 5},
	}
}

// ParseThresholds parses entries such as "memory.available<100Mi" or "nodefs.available<10%". Signals without an
// entry have their default; 0% disables a signal.
func ParseThresholds(entries []string) (map[Signal]Threshold, error) {
	all := DefaultThresholds()
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "<")
		signal := Signal(strings.TrimSpace(name))
		value = strings.TrimSpace(value)
		if !ok {
			return nil, fmt.Errorf("eviction-hard %q is not of the form memory.available<100Mi", entry)
		}
		if !slices.Contains(Signals, signal) {
			return nil, fmt.Errorf("eviction-hard %q: there is no signal %q, there are %s", entry, signal,
				strings.Trim(fmt.Sprint(Signals), "[]"))
		}
		t, err := parseThreshold(value)
		if err != nil {
			return nil, fmt.Errorf("eviction-hard %q: %w", entry, err)
		}
		if t == (Threshold{}) {
			delete(all, signal)
			continue
		}
		all[signal] = t
	}
	return all, nil
}

func parseThreshold(value string) (Threshold, error) {
	if number, is := strings.CutSuffix(value, "%"); is {
		p, err := strconv.ParseFloat(number, 64)
		if err != nil || !(p >= 0 && p < 100) {
			return Threshold{}, fmt.Errorf("%q is not a percentage from 0%% to below 100%%", value)
		}
		return Threshold{Percent: p}, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() <= 0 {
		return Threshold{}, fmt.Errorf("%q is neither a positive quantity, such as 100Mi, nor a percentage", value)
	}
	return Threshold{Amount: q.Value()}, nil
}

// ThresholdEntries converts the kubelet's format, a map of signals to values, to entries.
func ThresholdEntries(values map[string]any) (entries []string) {
	for _, signal := range slices.Sorted(maps.Keys(values)) {
		entries = append(entries, fmt.Sprintf("%s<%v", signal, values[signal]))
	}
	return entries
}

func (c Agent) validateEviction() []error {
	var errs []error
	if _, err := ParseThresholds(c.EvictionHard); err != nil {
		errs = append(errs, err)
	}
	if c.EvictionTransition <= 0 {
		errs = append(errs, fmt.Errorf("eviction-pressure-transition-period %s must be positive", c.EvictionTransition))
	}
	if c.ImageGCHigh < 1 || c.ImageGCHigh > 100 {
		errs = append(errs,
			fmt.Errorf("image-gc-high-threshold %d is not a percentage from 1 to 100; 100 never collects", c.ImageGCHigh))
	}
	if c.ImageGCLow < 0 || c.ImageGCLow >= c.ImageGCHigh {
		errs = append(errs,
			fmt.Errorf("image-gc-low-threshold %d is not a percentage from 0 to below image-gc-high-threshold, %d", c.ImageGCLow,
				c.ImageGCHigh))
	}
	return errs
}

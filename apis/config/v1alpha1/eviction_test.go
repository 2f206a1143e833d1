package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseThresholds(t *testing.T) {
	got, err := ParseThresholds([]string{
		"memory.available<1Gi", " nodefs.available < 7.5%", "imagefs.available<0%", "pid.available<1k",
	})
	require.NoError(t, err)
	require.Equal(t, map[Signal]Threshold{
		MemoryAvailable: {Amount: 1 << 30}, NodeFsAvailable: {Percent: 7.5}, NodeFsInodesFree: {Percent: 5},
		ImageFsInodesFree: {Percent: 5}, PIDAvailable: {Amount: 1000},
	}, got)
	require.EqualValues(t, 75, got[NodeFsAvailable].Of(1000))
	require.EqualValues(t, 1<<30, got[MemoryAvailable].Of(1000))

	for entry, want := range map[string]string{
		"memory.available":        "is not of the form",
		"memory.avialable<1Gi":    `there is no signal "memory.avialable", there are memory.available`,
		"memory.available<many":   `"many" is neither a positive quantity`,
		"memory.available<-1Gi":   `"-1Gi" is neither a positive quantity`,
		"memory.available<0":      `"0" is neither a positive quantity`,
		"nodefs.available<100%":   `"100%" is not a percentage`,
		"nodefs.available<-1%":    `"-1%" is not a percentage`,
		"nodefs.available<NaN%":   `"NaN%" is not a percentage`,
		"nodefs.inodesfree<5%":    "there is no signal",
		"nodefs.available>10%":    "is not of the form",
		"nodefs.available<10%<5%": `"10%<5%" is not a percentage`,
	} {
		_, err := ParseThresholds([]string{entry})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "eviction-hard")
	}
	require.Equal(t, []string{"memory.available<200Mi", "pid.available<5"},
		ThresholdEntries(map[string]any{"pid.available": 5, "memory.available": "200Mi"}))
}

func TestValidateNamesTheOptionOfEviction(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"eviction-hard":                       func(c *Config) { c.EvictionHard = []string{"disk<1"} },
		"eviction-pressure-transition-period": func(c *Config) { c.EvictionTransition = 0 },
		"image-gc-high-threshold":             func(c *Config) { c.ImageGCHigh = 101 },
		"image-gc-low-threshold":              func(c *Config) { c.ImageGCLow = c.ImageGCHigh },
		"containerd":                          func(c *Config) { c.Containerd = "containerd.sock" },
	} {
		c := Default()
		spoil(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}

package v1alpha1

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShutdownPeriods(t *testing.T) {
	for _, c := range []struct {
		given Shutdown
		want  []ShutdownPeriod
	}{
		{Default().Shutdown, []ShutdownPeriod{{0, 20 * time.Second}, {2_000_000_000, 10 * time.Second}}},
		{Shutdown{}, nil},
		{Shutdown{ShutdownGracePeriodCriticalPods: time.Minute}, nil},
		{Shutdown{ShutdownGracePeriod: time.Second}, []ShutdownPeriod{{0, time.Second}, {2_000_000_000, 0}}},
		{
			Shutdown{
				ShutdownGracePeriod: time.Minute, ShutdownGracePeriodByPodPriority: []string{"100=10s", "-5 = 1m", "2000001000=5s"},
			},
			[]ShutdownPeriod{{-5, time.Minute}, {100, 10 * time.Second}, {2_000_001_000, 5 * time.Second}},
		},
		{Shutdown{ShutdownGracePeriod: time.Minute, ShutdownGracePeriodByPodPriority: []string{"0=0s"}}, nil},
	} {
		got, err := c.given.ShutdownPeriods()
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%+v", c.given)
	}
}

func TestValidateNamesTheOptionOfShutdown(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf("%d=1s", i)
	}
	byPriority := func(entries ...string) func(*Config) {
		return func(c *Config) { c.ShutdownGracePeriodByPodPriority = entries }
	}
	for _, c := range []struct {
		want  string
		spoil func(*Config)
	}{
		{"shutdown-grace-period -1s", func(c *Config) { c.ShutdownGracePeriod = -time.Second }},
		{"shutdown-grace-period 2h0m0s", func(c *Config) { c.ShutdownGracePeriod = 2 * time.Hour }},
		{
			"shutdown-grace-period-critical-pods 10s is not within 0 and shutdown-grace-period, 5s",
			func(c *Config) { c.ShutdownGracePeriod = 5 * time.Second },
		},
		{"shutdown-grace-period-critical-pods -1s", func(c *Config) { c.ShutdownGracePeriodCriticalPods = -time.Second }},
		{`shutdown-grace-period-by-pod-priority "high=1s"`, byPriority("high=1s")},
		{`shutdown-grace-period-by-pod-priority "1"`, byPriority("1")},
		{`shutdown-grace-period-by-pod-priority "1=-1s"`, byPriority("1=-1s")},
		{`shutdown-grace-period-by-pod-priority "3000000000=1s"`, byPriority("3000000000=1s")},
		{"the priority 1 twice", byPriority("1=1s", "1=2s")},
		{"1h0m1s in all", byPriority("1=1h", "2=1s")},
		{"65 entries", byPriority(many...)},
	} {
		spoilt := Default()
		c.spoil(&spoilt)
		require.ErrorContains(t, spoilt.Validate(), c.want)
	}
}

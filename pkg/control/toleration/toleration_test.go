package toleration

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
)

func TestOf(t *testing.T) {
	taint := &resourcev1.DeviceTaint{Key: "k", Value: "v", Effect: resourcev1.DeviceTaintEffectNoExecute}
	exists := func(key string, effect resourcev1.DeviceTaintEffect, seconds ...int64) resourcev1.DeviceToleration {
		out := resourcev1.DeviceToleration{Key: key, Operator: resourcev1.DeviceTolerationOpExists, Effect: effect}
		if len(seconds) > 0 {
			out.TolerationSeconds = &seconds[0]
		}
		return out
	}
	const execute = resourcev1.DeviceTaintEffectNoExecute
	for name, c := range map[string]struct {
		of        []resourcev1.DeviceToleration
		stay      time.Duration
		tolerated bool
	}{
		"none":        {},
		"another key": {of: []resourcev1.DeviceToleration{exists("other", execute)}},
		"another effect": {
			of: []resourcev1.DeviceToleration{exists("k", resourcev1.DeviceTaintEffectNoSchedule)},
		},
		"without an end": {[]resourcev1.DeviceToleration{exists("k", execute)}, Forever, true},
		"for a time":     {[]resourcev1.DeviceToleration{exists("k", execute, 5)}, 5 * time.Second, true},
		"for none":       {[]resourcev1.DeviceToleration{exists("k", execute, -5)}, 0, true},
		"longer than is counted": {
			[]resourcev1.DeviceToleration{exists("k", execute, math.MaxInt64)}, maxSeconds * time.Second, true,
		},
		"the shortest": {
			[]resourcev1.DeviceToleration{exists("k", execute, 5), exists("", execute, 3), exists("k", execute, 7)},
			3 * time.Second,
			true,
		},
		"one has no end": {
			[]resourcev1.DeviceToleration{exists("k", execute, 5), exists("k", execute)}, Forever, true,
		},
		"seconds of all effects": {[]resourcev1.DeviceToleration{exists("k", "", 5)}, Forever, true},
		"one of another key has no end": {
			[]resourcev1.DeviceToleration{exists("k", execute, 5), exists("other", execute)}, 5 * time.Second, true,
		},
	} {
		stay, tolerated := Of(taint, c.of)
		require.Equal(t, c.stay, stay, name)
		require.Equal(t, c.tolerated, tolerated, name)
	}
}

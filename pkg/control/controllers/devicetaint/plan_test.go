package devicetaint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

func taint(key string, effect resourcev1.DeviceTaintEffect, ago time.Duration) resourcev1.DeviceTaint {
	at := metav1.NewTime(now.Add(-ago))
	return resourcev1.DeviceTaint{Key: key, Effect: effect, TimeAdded: &at}
}

func tolerates(key string, seconds ...int64) resourcev1.DeviceToleration {
	t := resourcev1.DeviceToleration{
		Key:      key,
		Operator: resourcev1.DeviceTolerationOpExists,
		Effect:   resourcev1.DeviceTaintEffectNoExecute,
	}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func slice(generation int64, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		Spec: resourcev1.ResourceSliceSpec{Driver: "d", Pool: resourcev1.ResourcePool{Name: "p", Generation: generation},
			Devices: []resourcev1.Device{
				{Name: "other", Taints: []resourcev1.DeviceTaint{taint("x", resourcev1.DeviceTaintEffectNoExecute, 0)}},
				{Name: "gpu", Taints: taints},
			}},
	}
}

func rule(s *resourcev1.DeviceTaintSelector, t resourcev1.DeviceTaint) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{UID: "rule", Generation: 1},
		Spec:       resourcev1.DeviceTaintRuleSpec{DeviceSelector: s, Taint: t},
	}
}

func claim(of types.UID, tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: of}},
		Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Driver: "d", Pool: "p", Device: "gpu", Tolerations: tolerations}}},
		}}}
}

func TestPlan(t *testing.T) {
	const execute, schedule = resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule
	driver, other := "d", "e"
	broken := taint("broken", execute, 10*time.Second)
	ended := metav1.Now()
	for name, c := range map[string]struct {
		slices []*resourcev1.ResourceSlice
		rule   *resourcev1.DeviceTaintRule
		claim  *resourcev1.ResourceClaim
		pod    func(*corev1.Pod)
		in     time.Duration // from now
		stays  bool
		byRule bool
	}{
		"no taint":               {slices: []*resourcev1.ResourceSlice{slice(1)}, stays: true},
		"a driver's":             {slices: []*resourcev1.ResourceSlice{slice(1, broken)}, in: -10 * time.Second},
		"of no effect on it":     {slices: []*resourcev1.ResourceSlice{slice(1, taint("broken", schedule, 0))}, stays: true},
		"of an older generation": {slices: []*resourcev1.ResourceSlice{slice(1, broken), slice(2)}, stays: true},
		"of a newer generation":  {slices: []*resourcev1.ResourceSlice{slice(1), slice(2, broken)}, in: -10 * time.Second},
		"without a time": {
			slices: []*resourcev1.ResourceSlice{slice(1, resourcev1.DeviceTaint{Key: "broken", Effect: execute})},
		},
		"a rule's": {
			rule: rule(&resourcev1.DeviceTaintSelector{Driver: &driver}, broken), in: -10 * time.Second, byRule: true,
		},
		"a rule's for all": {
			rule: rule(&resourcev1.DeviceTaintSelector{}, broken), in: -10 * time.Second, byRule: true,
		},
		"a rule's for none":   {rule: rule(nil, broken), stays: true},
		"a rule's for others": {rule: rule(&resourcev1.DeviceTaintSelector{Driver: &other}, broken), stays: true},
		"tolerated": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, claim: claim("uid", tolerates("broken")), stays: true,
		},
		"tolerated for a while": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, claim: claim("uid", tolerates("broken", 30)),
			in: 20 * time.Second,
		},
		"the shorter": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)},
			claim:  claim("uid", tolerates("broken", 30), tolerates("", 15)), in: 5 * time.Second,
		},
		"negative": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, claim: claim("uid", tolerates("broken", -5)),
			in: -10 * time.Second,
		},
		"nearly for ever": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, claim: claim("uid", tolerates("broken", 1<<62)),
			in: 9_000_000_000*time.Second - 10*time.Second,
		},
		"all effects tolerated": {slices: []*resourcev1.ResourceSlice{slice(1, broken)},
			claim: claim("uid", resourcev1.DeviceToleration{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists}),
			stays: true},
		"another effect tolerated": {slices: []*resourcev1.ResourceSlice{slice(1, broken)},
			claim: claim("uid", resourcev1.DeviceToleration{
				Key:      "broken",
				Operator: resourcev1.DeviceTolerationOpExists,
				Effect:   schedule,
			}), in: -10 * time.Second},
		"another one tolerated": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken, taint("two", execute, 0))},
			claim:  claim("uid", tolerates("broken")), in: 0,
		},
		"both, the earlier": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)},
			rule:   rule(&resourcev1.DeviceTaintSelector{}, taint("r", execute, time.Minute)), in: -time.Minute, byRule: true,
		},
		"another pod's claim": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, claim: claim("another"), stays: true,
		},
		"no allocation": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, claim: &resourcev1.ResourceClaim{}, stays: true,
		},
		"not on a node": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, pod: func(p *corev1.Pod) { p.Spec.NodeName = "" },
			stays: true,
		},
		"ended": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)},
			pod:    func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, stays: true,
		},
		"being deleted": {
			slices: []*resourcev1.ResourceSlice{slice(1, broken)}, pod: func(p *corev1.Pod) { p.DeletionTimestamp = &ended },
			stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "uid"}, Spec: corev1.PodSpec{NodeName: "n"}}
			if c.pod != nil {
				c.pod(p)
			}
			if c.claim == nil {
				c.claim = claim("uid")
			}
			in := Inventory{Slices: func(driver, pool string) []*resourcev1.ResourceSlice {
				require.Equal(t, "d/p", poolKey(driver, pool))
				return c.slices
			}}
			if c.rule != nil {
				in.Rules = []*resourcev1.DeviceTaintRule{c.rule}
			}
			e := Plan(p, []*resourcev1.ResourceClaim{c.claim}, in, now)
			if c.stays {
				require.Nil(t, e)
				return
			}
			require.NotNil(t, e)
			require.Equal(t, c.in, e.At.Sub(now))
			require.Equal(t, c.byRule, len(e.Rules) == 1 && e.Rules[0] == "rule")
		})
	}
}

// TestTolerationsOnlyDelay: a further toleration never evicts a pod earlier.
func TestTolerationsOnlyDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"a", "b", ""}
		var taints []resourcev1.DeviceTaint
		for range rapid.IntRange(0, 4).Draw(t, "taints") {
			effect := rapid.SampledFrom([]resourcev1.DeviceTaintEffect{"None", "NoSchedule", "NoExecute", "Unknown"}).Draw(t,
				"effect")
			taints = append(taints,
				taint(rapid.SampledFrom(keys[:2]).Draw(t, "key"), effect,
					time.Duration(rapid.IntRange(-60, 60).Draw(t, "ago"))*time.Second))
		}
		in := Inventory{Slices: func(string, string) []*resourcev1.ResourceSlice {
			return []*resourcev1.ResourceSlice{slice(1, taints...)}
		}}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "uid"}, Spec: corev1.PodSpec{NodeName: "n"}}
		without := Plan(p, []*resourcev1.ResourceClaim{claim("uid")}, in, now)
		with := Plan(p,
			[]*resourcev1.ResourceClaim{
				claim("uid",
					tolerates(rapid.SampledFrom(keys).Draw(t, "tolerated"), rapid.Int64Range(-10, 100).Draw(t, "seconds"))),
			}, in, now)
		if (without == nil) != (with == nil) || with != nil && with.At.Before(without.At) {
			t.Fatalf("%v without a toleration for a while, %v with one", without, with)
		}
	})
}

func TestCondition(t *testing.T) {
	r := rule(&resourcev1.DeviceTaintSelector{}, taint("t", resourcev1.DeviceTaintEffectNoExecute, 0))
	says := func(e Effects, status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		c, changed := Condition(r, e, now)
		require.True(t, changed)
		require.Equal(t, []string{string(status), reason, message}, []string{string(c.Status), c.Reason, c.Message})
		require.Equal(t, r.Generation, c.ObservedGeneration)
		r.Status.Conditions = []metav1.Condition{c}
		_, changed = Condition(r, e, now.Add(time.Hour))
		require.False(t, changed, "it is said once")
	}
	says(Effects{}, "False", "NotStarted", "")
	says(Effects{Pods: 1, Namespaces: 1}, "True", "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace.")
	says(Effects{Pods: 3, Namespaces: 2}, "True", "PodsPendingEviction",
		"3 pods need to be evicted in 2 different namespaces.")
	says(Effects{}, "False", "Completed", "")
	r.Spec.Taint.Effect, r.Generation = resourcev1.DeviceTaintEffectNone, 2
	says(Effects{Published: 2, Allocated: 1, Pods: 1, Namespaces: 1}, "False", "NoEffect",
		"2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace "+
			"if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger "+
			"an update.")
	_, changed := Condition(r, Effects{Pods: 5}, now)
	require.False(t, changed, "once for each change of the rule")
	r.Spec.Taint.Effect, r.Generation = resourcev1.DeviceTaintEffectNoSchedule, 3
	says(Effects{}, "False", "OtherEffect", "Eviction only happens for the NoExecute effect.")
}

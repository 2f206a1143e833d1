package pod

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestAllocation(t *testing.T) {
	p := spec(corev1.RestartPolicyAlways, []string{"i"}, []string{"a"})
	p.Generation = 1
	p.Spec.Containers[0].Resources.Limits = amountOf("1", "64Mi")
	a := allocationOf(p)
	require.False(t, a.desires(p))
	require.Same(t, p, a.of(p))

	image := p.DeepCopy()
	image.Generation, image.Spec.Containers[0].Image = 2, "other"
	require.False(t, a.desires(image), "that is no resource")

	for what, change := range map[string]func(*corev1.Pod){
		"a container":       func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = amountOf("2", "64Mi") },
		"an init container": func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources.Requests = amountOf("1", "") },
		"the pod": func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: amountOf("2", "")}
		},
	} {
		more := p.DeepCopy()
		more.Generation = 3
		change(more)
		before := more.DeepCopy()
		require.True(t, a.desires(more), what)
		got := a.of(more)
		require.Equal(t, before, more, "the API's pod is not changed")
		require.Equal(t, p.Spec.Containers[0].Resources, got.Spec.Containers[0].Resources, what)
		require.Equal(t, p.Spec.InitContainers[0].Resources, got.Spec.InitContainers[0].Resources, what)
		require.Nil(t, got.Spec.Resources, what)
		more.Generation = 1
		require.Same(t, more, a.of(more), "the resources are those of this generation")
	}
	none := allocation{}
	require.False(t, none.desires(p), "a pod that was not admitted")
}

func TestRoomForAResize(t *testing.T) {
	all := amountOf("4", "8Gi")
	for name, tt := range map[string]struct {
		now, next, others corev1.ResourceList
		why               string
		never             bool
	}{
		"it fits": {amountOf("1", "1Gi"), amountOf("2", "2Gi"), amountOf("2", "6Gi"), "", false},
		"one is short": {
			amountOf("1", "1Gi"), amountOf("3", "1Gi"), amountOf("2", "6Gi"),
			"Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000", false,
		},
		"the other is short": {
			amountOf("1", "1Gi"), amountOf("1", "3Gi"), amountOf("1", "6Gi"),
			"Node didn't have enough resource: memory, requested: 3221225472, used: 6442450944, capacity: 8589934592", false,
		},
		"never": {
			amountOf("1", "1Gi"), amountOf("3", "9Gi"), amountOf("2", "6Gi"),
			"Node didn't have enough capacity: memory, requested: 9663676416, capacity: 8589934592", true,
		},
		"less is always given": {amountOf("8", "8Gi"), amountOf("7", "8Gi"), amountOf("4", "8Gi"), "", false},
		"a first request":      {amountOf("", ""), amountOf("1", ""), amountOf("2", ""), "", false},
		"more of one, less of another": {
			amountOf("1", "4Gi"), amountOf("3", "1Gi"), amountOf("2", "0"),
			"Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			why, never := roomFor(tt.now, tt.next, tt.others, all)
			require.Equal(t, tt.why, why)
			require.Equal(t, tt.never, never)
		})
	}
}

func TestOrderOfResizes(t *testing.T) {
	waits := func(name string, more bool, priority int32, class corev1.PodQOSClass, since time.Duration) resizer {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{Priority: &priority},
			Status:     corev1.PodStatus{QOSClass: class},
		}
		r := resizer{pod: p, now: amountOf("1", "1Gi"), next: amountOf("1", "1Gi"), since: now.Add(since)}
		if more {
			r.next = amountOf("1", "2Gi")
		}
		return r
	}
	want := []resizer{
		waits("less", false, 0, corev1.PodQOSBurstable, time.Hour),
		waits("important", true, 10, corev1.PodQOSBurstable, time.Hour),
		waits("guaranteed", true, 0, corev1.PodQOSGuaranteed, time.Hour),
		waits("early", true, 0, corev1.PodQOSBurstable, 0),
		waits("late", true, 0, corev1.PodQOSBurstable, time.Minute),
	}
	rapid.Check(t, func(t *rapid.T) {
		got := rapid.Permutation(want).Draw(t, "order")
		slices.SortStableFunc(got, before)
		for i := range want {
			require.Equal(t, want[i].pod.Name, got[i].pod.Name)
		}
	})
}

func TestResizeSteps(t *testing.T) {
	limits := func(shares uint64, cpu, memory int64) runtime.PodLimits {
		return runtime.PodLimits{CPUShares: shares, CPUQuota: cpu, MemoryBytes: memory}
	}
	of := func(name string, cpu, memory, cpu2, memory2 int64) member {
		return member{
			name: name,
			id:   name,
			have: amounts{Shares: 1, CPULimit: cpu, MemoryLimit: memory},
			want: amounts{Shares: 1, CPULimit: cpu2, MemoryLimit: memory2},
		}
	}
	for name, tt := range map[string]struct {
		have, want runtime.PodLimits
		members    []member
		unsure     bool
		steps      []string
	}{
		"nothing": {limits(2, 10, 20), limits(2, 10, 20), []member{of("a", 1, 2, 1, 2)}, false, nil},
		"grows: the pod first": {
			limits(2, 10, 20),
			limits(4, 20, 40),
			[]member{of("a", 10, 20, 20, 40)},
			false,
			[]string{"memory 40", "a 10 40", "cpu 20", "shares 4", "a 20 40"},
		},
		"shrinks: the pod last": {
			limits(4, 20, 40),
			limits(2, 10, 20),
			[]member{of("a", 20, 40, 10, 20)},
			false,
			[]string{"a 20 20", "memory 20", "a 10 20", "shares 2", "cpu 10"},
		},
		"one of each": {
			limits(4, 10, 40),
			limits(4, 20, 20),
			[]member{of("a", 10, 40, 20, 20)},
			false,
			[]string{"a 10 20", "memory 20", "cpu 20", "a 20 20"},
		},
		"who shrinks comes first": {
			limits(2, 30, 0),
			limits(2, 30, 0),
			[]member{of("a", 10, 0, 20, 0), of("b", 20, 0, 10, 0)},
			false,
			[]string{"b 10 0", "a 20 0"},
		},
		"a first limit is a shrink": {
			limits(2, 0, 0),
			limits(2, 10, 20),
			[]member{of("a", 0, 0, 10, 20), of("b", 5, 5, 5, 5)},
			false,
			[]string{"a 0 20", "memory 20", "a 10 20", "cpu 10"},
		},
		"the requests of a container": {
			limits(2, 0, 0),
			limits(4, 0, 0),
			[]member{{id: "a", have: amounts{Shares: 2, CPURequest: 2}, want: amounts{Shares: 4, CPURequest: 4}}},
			false,
			[]string{"shares 4", "a 0 0"},
		},
		"not known what is there": {
			limits(2, 10, 20),
			limits(2, 10, 20),
			[]member{of("a", 1, 2, 1, 2)},
			true,
			[]string{"memory 20?", "cpu 10?", "a 1 2", "memory 20", "cpu 10", "shares 2"},
		},
		"no limit any more": {
			limits(2, 10, 20),
			limits(2, 0, 0),
			[]member{of("a", 10, 20, 0, 0)},
			false,
			[]string{"memory -1", "a 10 0", "cpu -1", "a 0 0"},
		},
		"no container runs": {limits(2, 10, 20), limits(2, 20, 20), nil, false, []string{"cpu 20"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range resizeSteps(tt.have, tt.want, tt.members, tt.unsure) {
				got = append(got, s.text())
			}
			require.Equal(t, tt.steps, got)
		})
	}
}

func (s resizeStep) text() string {
	end := map[bool]string{true: "?"}[s.attempt]
	switch {
	case s.of.id != "":
		return fmt.Sprintf("%s %d %d", s.of.id, s.amounts.CPULimit, s.amounts.MemoryLimit)
	case s.pod.MemoryBytes != 0:
		return fmt.Sprintf("memory %d%s", s.pod.MemoryBytes, end)
	case s.pod.CPUQuota != 0:
		return fmt.Sprintf("cpu %d%s", s.pod.CPUQuota, end)
	}
	return fmt.Sprintf("shares %d%s", s.pod.CPUShares, end)
}

// cgroups is a pod's hierarchy in cgroup v1, where a child's CPU quota must not exceed its parent's.
type cgroups struct {
	pod     runtime.PodLimits
	members map[string]amounts
}

func (c *cgroups) apply(s resizeStep) error {
	if s.of.id == "" {
		for id, m := range c.members {
			if q := quota(m.CPULimit); s.pod.CPUQuota > 0 && q > s.pod.CPUQuota { // 0 means the pod's quota
				return fmt.Errorf("%s has %d", id, q)
			}
		}
		c.pod = merge(c.pod, s.pod)
		return nil
	}
	if q := quota(s.amounts.CPULimit); c.pod.CPUQuota > 0 && q > c.pod.CPUQuota {
		return fmt.Errorf("the pod has %d", c.pod.CPUQuota)
	}
	c.members[s.of.id] = s.amounts
	return nil
}

// Wherever an agent is killed, the kernel refuses no required step, and all cgroups get the last allocation.
func TestResizeStepsAreNeverRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c"}[:rapid.IntRange(0, 3).Draw(t, "containers")]
		draw := func() (runtime.PodLimits, map[string]amounts) {
			cpu, memory := rapid.Int64Range(0, 8).Draw(t, "cpu")*100, rapid.Int64Range(0, 8).Draw(t, "memory")<<20
			// API validation limits containers to the pod's limit; a container without one has the pod's
			within := func(n int64) *rapid.Generator[int64] {
				if n == 0 {
					return rapid.Int64Range(0, 9)
				}
				return rapid.Int64Range(1, n)
			}
			all := map[string]amounts{}
			for _, n := range names {
				all[n] = amounts{
					Shares:      2,
					CPULimit:    within(cpu/100).Draw(t, "its cpu") * 100,
					MemoryLimit: within(memory>>20).Draw(t, "its memory") << 20,
				}
			}
			return runtime.PodLimits{
				CPUShares:   rapid.Uint64Range(2, 1024).Draw(t, "shares"),
				CPUQuota:    quota(cpu),
				MemoryBytes: memory,
			}, all
		}
		limits, given := draw()
		is := cgroups{pod: limits, members: map[string]amounts{}}
		for n, a := range given {
			is.members[n] = a
		}
		unsure := false
		for range rapid.IntRange(1, 5).Draw(t, "resizes") {
			want, wants := draw()
			var members []member
			for _, n := range names {
				members = append(members, member{name: n, id: n, have: given[n], want: wants[n]})
			}
			steps := resizeSteps(limits, want, members, unsure)
			killed := rapid.IntRange(0, len(steps)).Draw(t, "killed before")
			for _, s := range steps[:killed] {
				if err := is.apply(s); err != nil {
					require.True(t, s.attempt, "%s: %v", s.text(), err)
				}
			}
			if unsure = killed < len(steps); unsure {
				continue // the next process has the previous record
			}
			limits, given = want, wants
			require.Equal(t, want, is.pod)
			require.Equal(t, len(names), len(is.members))
			for n, a := range wants {
				require.Equal(t, a, is.members[n])
			}
		}
	})
}

func TestStatusOfAShare(t *testing.T) {
	p := spec(corev1.RestartPolicyAlways, nil, []string{"a", "b"})
	p.Spec.Overhead = amountOf("250m", "100Mi")
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: amountOf("100m", "16Mi"), Limits: amountOf("200m", ""),
	}
	p.Spec.Containers[1].Resources = corev1.ResourceRequirements{
		Requests: amountOf("100m", ""), Limits: amountOf("300m", "64Mi"),
	}
	s := shareOf(p)
	requireAmounts(t, amountOf("200m", "16Mi"), s.requests,
		"without the overhead, which is added by those who add pods up")
	requireAmounts(t, amountOf("200m", "16Mi"), s.now(s.limits).Requests)
	requireAmounts(t, amountOf("500m", ""), s.now(s.limits).Limits, "one container has no limit of memory")
	require.Equal(t, runtime.PodLimits{CPUShares: 460}, s.limits, "the pod's cgroup has that for the overhead, too")

	p.Spec.Resources = &corev1.ResourceRequirements{Requests: amountOf("400m", ""), Limits: amountOf("1", "128Mi")}
	s = shareOf(p)
	requireAmounts(t, amountOf("400m", "16Mi"), s.requests)
	requireAmounts(t, amountOf("1", "128Mi"), s.now(s.limits).Limits)
	now := s.now(runtime.PodLimits{CPUShares: 512, CPUQuota: 50_000, MemoryBytes: 64 << 20})
	requireAmounts(t, amountOf("500m", "16Mi"), now.Requests)
	requireAmounts(t, amountOf("500m", "64Mi"), now.Limits)
	requireAmounts(t, amountOf("1", "128Mi"), s.resources.Limits, "what is shown does not change what is to be")
}

func requireAmounts(t *testing.T, want, got corev1.ResourceList, message ...any) {
	t.Helper()
	text := func(l corev1.ResourceList) map[corev1.ResourceName]string {
		out := map[corev1.ResourceName]string{}
		for name, q := range l {
			out[name] = q.String()
		}
		return out
	}
	require.Equal(t, text(want), text(got), message...)
}

func TestLimitsThatAreSetAreNotWaitedFor(t *testing.T) {
	w := &worker{}
	w.held.limited = true
	w.cgroups.RLock() // as during the start of a container
	done := make(chan error, 1)
	go func() { done <- w.limitPod(t.Context()) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Error("it waits for the other container")
	}
	w.cgroups.RUnlock()
}

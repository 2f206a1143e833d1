package eviction

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

var (
	now    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	policy = Policy{Thresholds: kubelets(), Transition: 5 * time.Minute}
)

const gi = 1 << 30

func kubelets() map[config.Signal]config.Threshold {
	t := config.DefaultThresholds()
	t[config.NodeFsAvailable], t[config.ImageFsAvailable] = config.Threshold{Percent: 10}, config.Threshold{Percent: 15}
	return t
}

// signals returns the readings of a node without pressure, with the given ones replaced.
func signals(short map[config.Signal]Reading) map[config.Signal]Reading {
	all := map[config.Signal]Reading{
		config.MemoryAvailable: {2 * gi, 4 * gi}, config.NodeFsAvailable: {50 * gi, 100 * gi},
		config.NodeFsInodesFree: {900, 1000},
		config.ImageFsAvailable: {50 * gi, 100 * gi}, config.ImageFsInodesFree: {900, 1000},
		config.PIDAvailable: {1000, 32768},
	}
	for s, r := range short {
		all[s] = r
	}
	return all
}

// one returns a running pod whose container "a" uses the given amounts, after the changes.
func one(name string, memory, layer int64, change ...func(*Pod)) Pod {
	p := Pod{Running: true, Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}},
		Usage: &Usage{
			Containers: map[string]Use{
				"a": {Memory: memory, PIDs: memory / 1000, Layer: disk.Usage{Bytes: uint64(layer), Inodes: uint64(layer) / 1000}},
			},
		}}
	p.Spec.Containers = []corev1.Container{{Name: "a"}}
	for _, f := range change {
		f(&p)
	}
	return p
}

func requests(name corev1.ResourceName, amount string) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(amount)}
	}
}

func limit(amount string) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceEphemeralStorage: resource.MustParse(amount),
		}
	}
}

func priority(n int32) func(*Pod) { return func(p *Pod) { p.Spec.Priority = &n } }

func emptyDir(used uint64, limit string, medium corev1.StorageMedium) func(*Pod) {
	return func(p *Pod) {
		q := resource.MustParse(limit)
		p.Spec.Volumes = []corev1.Volume{
			{
				Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &q, Medium: medium}},
			},
		}
		p.Usage.Volumes = map[string]disk.Usage{"v": {Bytes: used}}
	}
}

func claimed(used uint64, size int64) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "d"}}
		p.Claims = map[string]volume.Claim{"d": {Name: "data", Size: size}}
		p.Usage.Claims = map[string]disk.Usage{"d": {Bytes: used, Inodes: used >> 10}}
	}
}

func TestLocalLimits(t *testing.T) {
	for name, c := range map[string]struct {
		pod  Pod
		want string
	}{
		"no limit":      {one("p", 0, 99*gi), ""},
		"volume within": {one("p", 0, 0, emptyDir(1<<20, "1Mi", "")), ""},
		"volume beyond": {
			one("p", 0, 0, emptyDir(1<<20+1, "1Mi", "")), `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `,
		},
		"volume in memory": {one("p", 0, 0, emptyDir(2<<20, "1Mi", corev1.StorageMediumMemory)), ""},
		"no size":          {one("p", 0, 0, emptyDir(2<<20, "0", "")), ""},
		"layer": {
			one("p", 0, 3<<20, limit("2Mi")), "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
		},
		"logs count": {one("p", 0, 1<<20, limit("2Mi"), func(p *Pod) {
			p.Usage.Containers["a"] = Use{Layer: disk.Usage{Bytes: 1 << 20}, Logs: disk.Usage{Bytes: 1<<20 + 1}}
		}), "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "},
		"volumes count": {
			one("p", 0, 1<<20, emptyDir(2<<20, "1Gi", ""), limit("2Mi")),
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
		},
		"one container of two": {one("p", 0, 3<<20, limit("2Mi"), func(p *Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}})
		}), `Container a exceeded its local ephemeral storage limit "2Mi". `},
		"claim within": {one("p", 0, 0, claimed(1<<20, 1<<20)), ""},
		"claim beyond": {one("p", 0, 0, claimed(3<<20, 1<<20)), `Usage of the volume of claim "data" exceeds its size ` +
			`"1Mi": 3Mi are used. The files are kept. Expand the claim, or remove files, before another pod can use it. `},
		"claims are not ephemeral": {one("p", 0, 1<<20, claimed(9<<20, 1<<30), limit("2Mi")), ""},
		"critical":                 {one("p", 0, 3<<20, limit("2Mi"), priority(2_000_000_000)), ""},
		"not measured":             {one("p", 0, 0, limit("2Mi"), func(p *Pod) { p.Usage = nil }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := Plan(policy, nil, Observed{Signals: signals(nil), Pods: []Pod{c.pod}}, now)
			require.Empty(t, d.Pressures)
			if c.want == "" {
				require.Empty(t, d.Evict)
				return
			}
			require.Equal(t, []Eviction{{Pod: c.pod.Pod, Message: c.want}}, d.Evict)
			require.True(t, Limited(c.pod))
		})
	}
	require.False(t, Limited(one("p", 0, 0)))
	require.False(t, Limited(one("p", 0, 0, emptyDir(0, "1Gi", corev1.StorageMediumMemory))))
}

func TestPressure(t *testing.T) {
	low := map[config.Signal]Reading{config.MemoryAvailable: {50 << 20, 4 * gi}}
	full := map[config.Signal]Reading{config.NodeFsAvailable: {9 * gi, 100 * gi}}
	images := map[config.Signal]Reading{config.ImageFsAvailable: {14 * gi, 100 * gi}}
	nodes := map[config.Signal]Reading{config.NodeFsInodesFree: {49, 1000}}
	for name, c := range map[string]struct {
		short      map[config.Signal]Reading
		thresholds []string
		reclaimed  bool
		measured   bool
		pods       []Pod
		conditions []corev1.NodeConditionType
		do         string // "reclaim", "measure" or the pod to evict
	}{
		"enough": {pods: []Pod{one("a", gi, gi)}},
		"exactly enough": {
			short: map[config.Signal]Reading{config.MemoryAvailable: {100 << 20, gi}, config.NodeFsAvailable: {10, 100}},
		},
		"not read": {
			short: map[config.Signal]Reading{config.NodeFsInodesFree: {}}, thresholds: []string{"nodefs.inodesFree<1k"},
		},
		"memory is measured": {
			short: low, pods: []Pod{one("a", 1, 0)}, conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure},
			do: "measure",
		},
		"turned off": {short: low, thresholds: []string{"memory.available<0%"}},
		"set higher": {
			thresholds: []string{"memory.available<3Gi"}, conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure},
			do: "measure",
		},
		"disk is reclaimed": {
			short: full, conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "reclaim",
		},
		"image disk": {
			short: images, conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "reclaim",
		},
		"inodes": {
			short: nodes, conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "reclaim",
		},
		"then measured": {
			short: full, reclaimed: true, conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "measure",
		},
		"nobody there": {
			short: full, reclaimed: true, measured: true, conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure},
		},
		"no default for pids": {short: map[config.Signal]Reading{config.PIDAvailable: {1, 32768}}},
		"pids": {
			thresholds: []string{"pid.available<2k"}, measured: true, pods: []Pod{one("few", 1000, 0), one("many", 9000, 0)},
			conditions: []corev1.NodeConditionType{corev1.NodePIDPressure}, do: "many",
		},
		"the larger": {
			short: low, measured: true, pods: []Pod{one("a", 10, 0), one("b", 20, 0), one("c", 15, 0)},
			conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}, do: "b",
		},
		"beyond its request": {
			short: low, measured: true,
			pods: []Pod{
				one("big", 900, 0, requests(corev1.ResourceMemory, "1k")),
				one("small", 20, 0, requests(corev1.ResourceMemory, "10")),
			}, conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}, do: "small",
		},
		"the least important": {
			short: low, measured: true, pods: []Pod{one("a", 900, 0, priority(5)), one("b", 20, 0, priority(-1))},
			conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}, do: "b",
		},
		"beyond, then priority": {
			short: low, measured: true,
			pods: []Pod{
				one("a", 900, 0, priority(5)), one("b", 20, 0, priority(-1), requests(corev1.ResourceMemory, "1k")),
			},
			conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}, do: "a",
		},
		"the system's stay": {
			short: low, measured: true, pods: []Pod{one("a", 900, 0, priority(2_000_000_000)), one("b", 20, 0)},
			conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}, do: "b",
		},
		"static ones stay": {short: low, measured: true, pods: []Pod{one("a", 900, 0, func(p *Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}), one("b", 900, 0, func(p *Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
		})}, conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}},
		"what runs not frees none": {
			short: low, measured: true, pods: []Pod{one("a", 900, 0, func(p *Pod) { p.Running = false })},
			conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure},
		},
		"disk counts": {
			short: full, reclaimed: true, measured: true, pods: []Pod{one("a", 900, 10), one("b", 1, 20)},
			conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "b",
		},
		"claims count": {
			short: full, reclaimed: true, measured: true, pods: []Pod{one("a", 0, 1<<20), one("b", 0, 0, claimed(2<<20, gi))},
			conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "b",
		},
		"inodes of claims count": {
			short: nodes, reclaimed: true, measured: true, pods: []Pod{one("a", 0, 1000), one("b", 0, 0, claimed(2<<20, gi))},
			conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "b",
		},
		"inodes count": {
			short: nodes, reclaimed: true, measured: true, pods: []Pod{one("a", 900, 10000), one("b", 1, 20000)},
			conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "b",
		},
		"unknown goes first": {
			short: full, reclaimed: true, measured: true,
			pods:       []Pod{one("a", 0, 9*gi), one("b", 1, 20, func(p *Pod) { p.Usage = nil })},
			conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure}, do: "b",
		},
		"memory before disk": {
			short: map[config.Signal]Reading{
				config.MemoryAvailable: {50 << 20, 4 * gi}, config.NodeFsAvailable: {9 * gi, 100 * gi},
			}, measured: true,
			pods:       []Pod{one("a", 900, 10), one("b", 1, 20)},
			conditions: []corev1.NodeConditionType{corev1.NodeDiskPressure, corev1.NodeMemoryPressure}, do: "a",
		},
		"a limit comes first": {
			short: low, measured: true, pods: []Pod{one("a", 900, 10), one("b", 1, 20, limit("10"))},
			conditions: []corev1.NodeConditionType{corev1.NodeMemoryPressure}, do: "b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			thresholds, err := config.ParseThresholds(append([]string{"nodefs.available<10%", "imagefs.available<15%"},
				c.thresholds...))
			require.NoError(t, err)
			o := Observed{Signals: signals(c.short), Pods: c.pods, Reclaimed: c.reclaimed, Measured: c.measured}
			d := Plan(Policy{Thresholds: thresholds, Transition: time.Minute}, nil, o, now)
			require.Len(t, d.Pressures, len(c.conditions))
			for _, kind := range c.conditions {
				require.Contains(t, d.Pressures, kind)
			}
			got := ""
			switch {
			case d.Reclaim:
				got = "reclaim"
			case d.Measure:
				got = "measure"
			case len(d.Evict) > 0:
				require.Len(t, d.Evict, 1)
				got = d.Evict[0].Pod.Name
			}
			require.Equal(t, c.do, got)
		})
	}
}

func TestMessages(t *testing.T) {
	o := Observed{Signals: signals(map[config.Signal]Reading{config.MemoryAvailable: {50 << 20, 4 * gi}}), Measured: true,
		Pods: []Pod{one("p", 30<<20, 0, requests(corev1.ResourceMemory, "10Mi"))}}
	d := Plan(policy, nil, o, now)
	require.Equal(t,
		[]Eviction{{o.Pods[0].Pod, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
			"Container a was using 30Mi, request is 10Mi, has larger consumption of memory. ", true}}, d.Evict)
	require.Equal(t, "memory.available was 50Mi, below the threshold of 100Mi", d.Pressures[corev1.NodeMemoryPressure].Why)

	o = Observed{
		Signals:   signals(map[config.Signal]Reading{config.NodeFsInodesFree: {49, 1000}}),
		Measured:  true,
		Reclaimed: true,
		Pods:      []Pod{one("p", 0, 5000)},
	}
	d = Plan(policy, nil, o, now)
	require.Equal(t, "The node was low on resource: inodes. Threshold quantity: 50, available: 49. ", d.Evict[0].Message)
	require.Equal(t, "nodefs.inodesFree was 49, below the threshold of 50, 5% of 1000",
		d.Pressures[corev1.NodeDiskPressure].Why)
}

// A pressure condition stays True for a while after the pressure ended, with its first message.
func TestTransition(t *testing.T) {
	short := func(available int64) Observed {
		return Observed{Signals: signals(map[config.Signal]Reading{config.NodeFsAvailable: {available * gi, 100 * gi}})}
	}
	first := Plan(policy, nil, short(9), now)
	was := first.Pressures[corev1.NodeDiskPressure]
	require.Contains(t, was.Why, "nodefs.available was 9216Mi")

	later := now.Add(4 * time.Minute)
	second := Plan(policy, first.Pressures, short(8), later)
	require.Equal(t, Pressure{later, was.Why, was.sig}, second.Pressures[corev1.NodeDiskPressure])

	still := Plan(policy, second.Pressures, short(50), later.Add(policy.Transition-1))
	require.Equal(t, second.Pressures, still.Pressures)
	require.Empty(t, still.Starved, "what is reported is not what is acted on")
	require.Empty(t, Plan(policy, still.Pressures, short(50), later.Add(policy.Transition)).Pressures)

	other := short(50)
	other.Signals[config.ImageFsAvailable] = Reading{gi, 100 * gi}
	require.Contains(t, Plan(policy, second.Pressures, other, later).Pressures[corev1.NodeDiskPressure].Why,
		"imagefs.available")
}

func TestRefuse(t *testing.T) {
	plain := one("p", 0, 0).Pod
	asks := one("p", 0, 0, requests(corev1.ResourceMemory, "1Mi")).Pod
	system := one("p", 0, 0, priority(2_000_001_000)).Pod
	bears := one("p", 0, 0).Pod
	bears.Spec.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists},
	}
	memory, disk := []corev1.NodeConditionType{corev1.NodeMemoryPressure}, []corev1.NodeConditionType{
		corev1.NodeDiskPressure,
	}
	both := []corev1.NodeConditionType{corev1.NodeDiskPressure, corev1.NodeMemoryPressure}
	for i, c := range []struct {
		pod       *corev1.Pod
		pressures []corev1.NodeConditionType
		refused   bool
	}{
		{plain, nil, false}, {plain, memory, true}, {plain, disk, true}, {asks, memory, false}, {asks, disk, true},
		{asks, both, true},
		{bears, memory, false}, {bears, both, true}, {system, both, false},
	} {
		require.Equal(t, c.refused, Refuse(c.pod, c.pressures) != "", "%d", i)
	}
	require.Equal(t, "Pod was rejected: The node had condition: [DiskPressure MemoryPressure]. ", Refuse(plain, both))
}

// For any input: no critical pod is evicted, no pod is evicted without a reason, and cheaper remedies come first.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Observed{
			Signals:   map[config.Signal]Reading{},
			Reclaimed: rapid.Bool().Draw(t, "reclaimed"),
			Measured:  rapid.Bool().Draw(t, "measured"),
		}
		for _, s := range config.Signals {
			if rapid.Bool().Draw(t, "read") {
				capacity := rapid.Int64Range(0, 100*gi).Draw(t, "capacity")
				o.Signals[s] = Reading{rapid.Int64Range(0, capacity).Draw(t, "available"), capacity}
			}
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "pods") {
			p := one(fmt.Sprint(i), rapid.Int64Range(0, gi).Draw(t, "memory"), rapid.Int64Range(0, gi).Draw(t, "layer"),
				priority(rapid.SampledFrom([]int32{-5, 0, 7, lowestCritical}).Draw(t, "priority")))
			p.Running = rapid.Bool().Draw(t, "running")
			if rapid.Bool().Draw(t, "unmeasured") {
				p.Usage = nil
			}
			o.Pods = append(o.Pods, p)
		}
		d := Plan(policy, nil, o, now)
		if again := Plan(policy, d.Pressures, o, now); fmt.Sprint(again) != fmt.Sprint(d) {
			t.Fatalf("not stable: %v, then %v", d, again)
		}
		if (d.Starved == "") != (len(d.Pressures) == 0) {
			t.Fatalf("starved of %q under %v", d.Starved, d.Pressures)
		}
		if len(d.Evict) > 1 ||
			len(d.Evict) == 1 && (d.Reclaim || d.Measure || Critical(d.Evict[0].Pod) || d.Starved == "" || !o.Measured) {
			t.Fatalf("%+v", d)
		}
		if _, disk := d.Pressures[corev1.NodeDiskPressure]; disk && len(d.Pressures) == 1 && !o.Reclaimed && !d.Reclaim {
			t.Fatalf("pods before images: %+v", d)
		}
	})
}

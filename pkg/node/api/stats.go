package api

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

type usage struct {
	pod       *corev1.Pod
	container string
	stats     runtime.Stats
	started   time.Time
}

func (s *Server) usages(ctx context.Context) []usage {
	var out []usage
	for _, p := range s.c.Pods.Pods() {
		for _, name := range names(p) {
			runs := s.c.Pods.Instances(p.UID, name)
			if len(runs) == 0 || runs[0].State != runtime.Running {
				continue
			}
			if st, err := s.c.Runtime.Stats(ctx, runs[0].ID); err == nil {
				out = append(out, usage{p, name, st, runs[0].StartedAt})
			}
		}
	}
	return out
}

func ptr[T any](v T) *T { return &v }

// summary serves /stats/summary. What cannot be read, or was not measured yet, is absent.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	used := s.c.Usage(r.Context())
	now := metav1.Now()
	node, image := fileSystem(now, s.c.LogDir), fileSystem(now, s.c.Runtime.ImageDir())
	pods, interfaces, err := s.c.Network.Traffic(r.Context())
	if err != nil {
		s.c.Logger.Warn("could not read the interfaces' traffic", "error", err)
	}
	sum := stats.Summary{Node: s.nodeStats(now, node, networkStats(now, interfaces)), Pods: []stats.PodStats{}}
	sum.Node.Runtime = s.runtimeStats(r.Context(), image, used)
	at := map[types.UID]int{}
	for _, u := range s.usages(r.Context()) {
		i, seen := at[u.pod.UID]
		if !seen {
			i = len(sum.Pods)
			at[u.pod.UID] = i
			p := podStats(u.pod, now)
			if t, has := pods[string(u.pod.UID)]; has {
				p.Network = networkStats(now, []network.Traffic{t})
			}
			p.CPU.PSI, p.Memory.PSI, p.IO = stalled(now, s.c.Pods.PodPressure(r.Context(), u.pod.UID))
			addDisk(&p, node, used[u.pod.UID])
			sum.Pods = append(sum.Pods, p)
		}
		addContainer(&sum.Pods[i], u, node, image, used[u.pod.UID])
	}
	for _, v := range s.c.Pods.VolumeSpaces() {
		if i, has := at[v.Pod.UID]; has {
			has := stats.FsStats{Time: metav1.NewTime(v.At), CapacityBytes: &v.Capacity}
			if !v.Block {
				has.AvailableBytes, has.UsedBytes = &v.Available, &v.Used
				has.Inodes, has.InodesFree, has.InodesUsed = &v.Inodes, &v.InodesFree, &v.InodesUsed
			}
			sum.Pods[i].VolumeStats = append(sum.Pods[i].VolumeStats, stats.VolumeStats{
				Name: v.Volume, PVCRef: &stats.PVCReference{Name: v.Claim, Namespace: v.Pod.Namespace}, FsStats: has})
		}
	}
	reply(w, sum)
}

func podStats(p *corev1.Pod, now metav1.Time) stats.PodStats {
	zero := func() *uint64 { return new(uint64) }
	out := stats.PodStats{
		PodRef:       stats.PodReference{Name: p.Name, Namespace: p.Namespace, UID: string(p.UID)},
		CPU:          &stats.CPUStats{Time: now, UsageCoreNanoSeconds: zero()},
		Memory:       &stats.MemoryStats{Time: now, UsageBytes: zero(), WorkingSetBytes: zero(), RSSBytes: zero()},
		ProcessStats: &stats.ProcessStats{ProcessCount: zero()},
		Swap:         &stats.SwapStats{Time: now, SwapUsageBytes: zero()},
	}
	if t := p.Status.StartTime; t != nil {
		out.StartTime = *t
	}
	return out
}

func addContainer(p *stats.PodStats, u usage, node, image *stats.FsStats, used *eviction.Usage) {
	at := metav1.NewTime(u.stats.At)
	c := stats.ContainerStats{
		Name: u.container, StartTime: metav1.NewTime(u.started),
		CPU: &stats.CPUStats{Time: at, UsageCoreNanoSeconds: ptr(uint64(u.stats.CPU))},
		Memory: &stats.MemoryStats{Time: at, UsageBytes: ptr(u.stats.Memory),
			WorkingSetBytes: ptr(u.stats.WorkingSet), RSSBytes: ptr(u.stats.RSS)},
		Swap: &stats.SwapStats{Time: at, SwapUsageBytes: ptr(u.stats.Swap)},
	}
	if l := u.stats.SwapLimit; l != nil {
		c.Swap.SwapAvailableBytes = ptr(*l - min(*l, u.stats.Swap))
	}
	c.CPU.PSI, c.Memory.PSI, c.IO = stalled(at, u.stats.Pressure)
	if used != nil {
		c.Rootfs, c.Logs = share(image, used.Containers[u.container].Layer), share(node, used.Containers[u.container].Logs)
	}
	p.Containers = append(p.Containers, c)
	*p.CPU.UsageCoreNanoSeconds += uint64(u.stats.CPU)
	*p.Memory.UsageBytes += u.stats.Memory
	*p.Memory.WorkingSetBytes += u.stats.WorkingSet
	*p.Memory.RSSBytes += u.stats.RSS
	*p.ProcessStats.ProcessCount += u.stats.Pids
	*p.Swap.SwapUsageBytes += u.stats.Swap
}

// stalled returns nothing if the kernel does not measure pressure.
func stalled(at metav1.Time, p *runtime.Pressure) (cpu, memory *stats.PSIStats, io *stats.IOStats) {
	if p == nil {
		return nil, nil, nil
	}
	data := func(s runtime.Stall) stats.PSIData {
		return stats.PSIData{Total: uint64(s.Total), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	both := func(s runtime.Stalls) *stats.PSIStats {
		return &stats.PSIStats{Some: data(s.Some), Full: data(s.Full)}
	}
	return both(p.CPU), both(p.Memory), &stats.IOStats{Time: at, PSI: both(p.IO)}
}

// addDisk adds the emptyDirs on disk, and the sum of all that counts as local ephemeral storage.
func addDisk(p *stats.PodStats, node *stats.FsStats, used *eviction.Usage) {
	if used == nil {
		return
	}
	p.EphemeralStorage = share(node, used.Disk())
	for _, name := range slices.Sorted(maps.Keys(used.Volumes)) {
		if fs := share(node, used.Volumes[name]); fs != nil {
			p.VolumeStats = append(p.VolumeStats, stats.VolumeStats{Name: name, FsStats: *fs})
		}
	}
}

// share returns the figures of a part of a file system: the part's usage and the whole's capacity.
func share(whole *stats.FsStats, used disk.Usage) *stats.FsStats {
	if whole == nil {
		return nil
	}
	fs := *whole
	fs.UsedBytes, fs.InodesUsed = &used.Bytes, &used.Inodes
	return &fs
}

// networkStats returns nil without interfaces. The first one is the default interface.
func networkStats(now metav1.Time, all []network.Traffic) *stats.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	out := &stats.NetworkStats{Time: now}
	for _, t := range all {
		out.Interfaces = append(out.Interfaces, stats.InterfaceStats{
			Name: t.Interface, RxBytes: &t.Received.Bytes, RxErrors: &t.Received.Errors,
			TxBytes: &t.Sent.Bytes, TxErrors: &t.Sent.Errors,
		})
	}
	out.InterfaceStats = out.Interfaces[0]
	return out
}

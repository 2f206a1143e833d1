package api

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-dev/coracle/pkg/node/host/pids"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

type usage struct {
	pod       *corev1.Pod
	container string
	stats     runtime.Stats
	started   time.Time
}

// usages returns the usage of all running containers.
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

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	now := metav1.Now()
	sum := stats.Summary{Node: s.nodeStats(now), Pods: []stats.PodStats{}}
	cpu := func(u usage) *stats.CPUStats {
		return &stats.CPUStats{Time: metav1.NewTime(u.stats.At), UsageCoreNanoSeconds: ptr(uint64(u.stats.CPU))}
	}
	memory := func(u usage) *stats.MemoryStats {
		return &stats.MemoryStats{Time: metav1.NewTime(u.stats.At), UsageBytes: ptr(u.stats.MemoryUsage),
			WorkingSetBytes: ptr(u.stats.MemoryWorkingSet), RSSBytes: ptr(u.stats.MemoryRSS)}
	}
	at := map[string]int{}
	for _, u := range s.usages(r.Context()) {
		key := string(u.pod.UID)
		i, seen := at[key]
		if !seen {
			i = len(sum.Pods)
			at[key] = i
			p := stats.PodStats{PodRef: stats.PodReference{Name: u.pod.Name, Namespace: u.pod.Namespace, UID: key},
				CPU: &stats.CPUStats{Time: now, UsageCoreNanoSeconds: ptr(uint64(0))},
				Memory: &stats.MemoryStats{
					Time:            now,
					UsageBytes:      ptr(uint64(0)),
					WorkingSetBytes: ptr(uint64(0)),
					RSSBytes:        ptr(uint64(0)),
				}}
			if t := u.pod.Status.StartTime; t != nil {
				p.StartTime = *t
			}
			sum.Pods = append(sum.Pods, p)
		}
		p := &sum.Pods[i]
		p.Containers = append(p.Containers, stats.ContainerStats{Name: u.container, StartTime: metav1.NewTime(u.started),
			CPU: cpu(u), Memory: memory(u),
			Rootfs: &stats.FsStats{
				Time:       metav1.NewTime(u.stats.At),
				UsedBytes:  ptr(u.stats.Disk),
				InodesUsed: ptr(u.stats.Inodes),
			}})
		*p.CPU.UsageCoreNanoSeconds += uint64(u.stats.CPU)
		*p.Memory.UsageBytes += u.stats.MemoryUsage
		*p.Memory.WorkingSetBytes += u.stats.MemoryWorkingSet
		*p.Memory.RSSBytes += u.stats.MemoryRSS
	}
	for _, v := range s.c.Pods.VolumeSpaces() {
		if i, has := at[string(v.Pod.UID)]; has {
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

// nodeStats is the machine's usage. What cannot be read is absent.
func (s *Server) nodeStats(now metav1.Time) stats.NodeStats {
	out := stats.NodeStats{NodeName: s.c.NodeName}
	if cpu, memory, err := machineUsage(); err == nil {
		out.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: ptr(uint64(cpu * 1e9))}
		out.Memory = &stats.MemoryStats{Time: now, WorkingSetBytes: ptr(uint64(memory))}
	}
	var fs unix.Statfs_t
	if s.c.LogDir != "" && unix.Statfs(s.c.LogDir, &fs) == nil {
		size := uint64(fs.Bsize)
		out.Fs = &stats.FsStats{
			Time: now, CapacityBytes: ptr(fs.Blocks * size), AvailableBytes: ptr(fs.Bavail * size),
			UsedBytes: ptr((fs.Blocks - fs.Bfree) * size),
			Inodes:    ptr(fs.Files), InodesFree: ptr(fs.Ffree), InodesUsed: ptr(fs.Files - fs.Ffree),
		}
	}
	out.Rlimit = processStats(now)
	return out
}

// processStats counts the machine's threads, as the kubelet does.
func processStats(now metav1.Time) *stats.RlimitStats {
	count, err := pids.Count()
	limit, limitErr := pids.Limit()
	if err != nil || limitErr != nil {
		return nil
	}
	return &stats.RlimitStats{Time: now, MaxPID: &limit, NumOfRunningProcesses: &count}
}

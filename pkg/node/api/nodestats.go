package api

import (
	"context"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/host/pids"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

// nodeStats is the machine's usage. What cannot be read is absent.
func (s *Server) nodeStats(now metav1.Time, fs *stats.FsStats, network *stats.NetworkStats) stats.NodeStats {
	out := stats.NodeStats{
		NodeName: s.c.NodeName, StartTime: metav1.NewTime(s.began), Fs: fs, Network: network, Rlimit: processStats(now),
	}
	if cpu, used, available, err := machineUsage(); err == nil {
		out.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: ptr(uint64(cpu * 1e9)), PSI: pressure("cpu")}
		out.Memory = &stats.MemoryStats{
			Time: now, WorkingSetBytes: ptr(uint64(used)), AvailableBytes: ptr(uint64(available)), PSI: pressure("memory"),
		}
	}
	if psi := pressure("io"); psi != nil {
		out.IO = &stats.IOStats{Time: now, PSI: psi}
	}
	out.Swap = swap(now)
	return out
}

// pressure returns how long the machine's tasks have waited for a resource (cpu, memory or io); nil if the kernel does
// not measure it.
func pressure(resource string) *stats.PSIStats {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	p, err := proc.PSIStatsForResource(resource)
	if err != nil || p.Some == nil {
		return nil
	}
	data := func(l *procfs.PSILine) stats.PSIData {
		if l == nil { // cpu before Linux 5.13
			return stats.PSIData{}
		}
		return stats.PSIData{Total: l.Total * 1000, Avg10: l.Avg10, Avg60: l.Avg60, Avg300: l.Avg300}
	}
	return &stats.PSIStats{Some: data(p.Some), Full: data(p.Full)}
}

// swap returns the machine's swap, nil if it has none.
func swap(now metav1.Time) *stats.SwapStats {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	m, err := proc.Meminfo()
	if err != nil || m.SwapTotalBytes == nil || m.SwapFreeBytes == nil || *m.SwapTotalBytes == 0 {
		return nil
	}
	return &stats.SwapStats{
		Time: now, SwapAvailableBytes: m.SwapFreeBytes, SwapUsageBytes: ptr(*m.SwapTotalBytes - *m.SwapFreeBytes),
	}
}

// runtimeStats returns the image file system twice, since it also has the containers' writable layers.
func (s *Server) runtimeStats(ctx context.Context, fs *stats.FsStats,
	used map[types.UID]*eviction.Usage) *stats.RuntimeStats {
	if fs == nil {
		return nil
	}
	var images, layers disk.Usage
	var err error
	if images.Bytes, images.Inodes, err = s.c.Runtime.Images().Usage(ctx); err != nil {
		s.c.Logger.Warn("could not read the images' disk usage", "error", err)
	}
	for _, u := range used {
		for _, c := range u.Containers {
			layers = layers.Plus(c.Layer)
		}
	}
	return &stats.RuntimeStats{ImageFs: share(fs, images), ContainerFs: share(fs, layers)}
}

// fileSystem returns the figures of dir's file system, nil if there are none.
func fileSystem(now metav1.Time, dir string) *stats.FsStats {
	var fs unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &fs) != nil {
		return nil
	}
	size := uint64(fs.Bsize)
	return &stats.FsStats{
		Time: now, CapacityBytes: ptr(fs.Blocks * size), AvailableBytes: ptr(fs.Bavail * size),
		UsedBytes: ptr((fs.Blocks - fs.Bfree) * size),
		Inodes:    ptr(fs.Files), InodesFree: ptr(fs.Ffree), InodesUsed: ptr(fs.Files - fs.Ffree),
	}
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

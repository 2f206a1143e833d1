package api

import (
	"context"

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
		out.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: ptr(uint64(cpu * 1e9))}
		out.Memory = &stats.MemoryStats{
			Time: now, WorkingSetBytes: ptr(uint64(used)), AvailableBytes: ptr(uint64(available)),
		}
	}
	return out
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

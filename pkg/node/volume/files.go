package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

// objectVolume is the plugin for a kind of volume that presents API objects as files on the node's tmpfs.
type objectVolume struct {
	name     string
	supports func(*corev1.VolumeSource) bool
	collect  collect
	fail     failpoint.Hook
}

func objectPlugins(s *sources, fail failpoint.Hook) []Plugin {
	return []Plugin{
		objectVolume{
			"kubernetes.io/configmap", func(v *corev1.VolumeSource) bool { return v.ConfigMap != nil }, s.configMapFiles, fail,
		},
		objectVolume{
			"kubernetes.io/secret", func(v *corev1.VolumeSource) bool { return v.Secret != nil }, s.secretFiles, fail,
		},
		objectVolume{
			"kubernetes.io/downward-api", func(v *corev1.VolumeSource) bool { return v.DownwardAPI != nil }, s.downwardFiles,
			fail,
		},
		objectVolume{
			"kubernetes.io/projected", func(v *corev1.VolumeSource) bool { return v.Projected != nil }, s.projectedFiles, fail,
		},
	}
}

func (o objectVolume) Name() string { return o.name }

func (o objectVolume) CanSupport(v *corev1.VolumeSource) bool { return o.supports(v) }

func (o objectVolume) Setup(ctx context.Context, p Pod, v *Volume) (Mounted, error) {
	out := Mounted{Path: v.MemoryDir, ReadOnly: true}
	files, refresh, err := o.collect(ctx, p)
	if err != nil {
		return out, err
	}
	if *p.memory -= memoryOf(files, os.Getpagesize()); *p.memory < 0 {
		return out, errObjects
	}
	if err := os.MkdirAll(filepath.Dir(v.MemoryDir), 0o750); err != nil {
		return out, err
	}
	if err := os.Mkdir(v.MemoryDir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return out, err
	}
	if err := o.fail.At("objects.mkdir"); err != nil {
		return out, err
	}
	mode, group := 0o777|os.ModeSticky, fsGroup(p.Pod)
	if group != nil {
		mode |= os.ModeSetgid
		if err := os.Chown(v.MemoryDir, -1, int(*group)); err != nil {
			return out, err
		}
	}
	if err := os.Chmod(v.MemoryDir, mode); err != nil {
		return out, err
	}
	out.Refresh = refresh
	if err := WriteAtomic(v.MemoryDir, files, group); err != nil {
		return out, err
	}
	return out, o.fail.At("objects.written")
}

func (o objectVolume) Teardown(ctx context.Context, v *Volume) error {
	if err := disk.RemoveAll(ctx, v.MemoryDir); err != nil {
		return err
	}
	return o.fail.At("objects.removed")
}

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"
)

// hostPath is the plugin for files and directories of the host. What it creates stays on the host.
type hostPath struct{}

func (hostPath) Name() string { return "kubernetes.io/host-path" }

func (hostPath) CanSupport(s *corev1.VolumeSource) bool { return s.HostPath != nil }

func (hostPath) CanSupportPersistent(s *corev1.PersistentVolumeSource) bool { return s.HostPath != nil }

func (hostPath) Setup(_ context.Context, p Pod, _ *Volume) (Mounted, error) {
	h, readOnly := p.Source.HostPath, false
	if v := p.Persistent; v != nil {
		h, readOnly = v.Volume.Spec.HostPath, v.ReadOnly
		if v.Block() {
			return Mounted{}, fmt.Errorf("volume %s has volumeMode Block, which hostPath volumes cannot have; use a local "+
				"volume", v.Volume.Name)
		}
	}
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	return Mounted{Path: h.Path, CreateMissing: true, ReadOnly: readOnly}, checkHostPath(h.Path, kind)
}

func (hostPath) Teardown(context.Context, *Volume) error { return nil }

var hostPathNames = map[corev1.HostPathType]string{
	corev1.HostPathDirectoryOrCreate: "a directory", corev1.HostPathDirectory: "a directory",
	corev1.HostPathFileOrCreate: "a file", corev1.HostPathFile: "a file", corev1.HostPathSocket: "a socket file",
	corev1.HostPathCharDev: "a character device", corev1.HostPathBlockDev: "a block device",
}

func checkHostPath(path string, kind corev1.HostPathType) error {
	if kind == corev1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return err
	case missing && kind == corev1.HostPathDirectoryOrCreate:
		return os.MkdirAll(path, 0o755)
	case missing && kind == corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	case missing || !hasType(info.Mode(), kind):
		return fmt.Errorf("hostPath type check failed: %s is not %s", path, hostPathNames[kind])
	}
	return nil
}

func hasType(mode fs.FileMode, kind corev1.HostPathType) bool {
	switch kind {
	case corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory:
		return mode.IsDir()
	case corev1.HostPathFileOrCreate, corev1.HostPathFile:
		return mode.IsRegular()
	case corev1.HostPathSocket:
		return mode&os.ModeSocket != 0
	case corev1.HostPathCharDev:
		return mode&os.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		return mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0
	}
	return false
}

// Package csidriver is a CSI driver for tests. Its volumes are directories, which it bind mounts; it records its calls.
package csidriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver serves the node's part of CSI. Set its fields before Start.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	Name string
	// Kubelet is the directory shared with the agent, without links; Public is its name for drivers.
	Kubelet, Public string
	// Data holds a directory for each volume.
	Data         string
	Capabilities []csi.NodeServiceCapability_RPC_Type
	Topology     map[string]string
	MaxVolumes   int64
	// Call, if set, is called with each call of the node service, and may fail it or hang.
	Call func(ctx context.Context, method string, request any) error

	mu    sync.Mutex
	calls []string
	last  map[string]any

	servers []*grpc.Server
	done    sync.WaitGroup
}

// Start serves the driver and registers it.
func (d *Driver) Start() error {
	d.last = map[string]any{}
	dir := filepath.Join("plugins", d.Name)
	if err := os.MkdirAll(filepath.Join(d.Kubelet, dir), 0o755); err != nil {
		return err
	}
	driver := grpc.NewServer(grpc.UnaryInterceptor(d.record))
	csi.RegisterIdentityServer(driver, d)
	csi.RegisterNodeServer(driver, d)
	register := grpc.NewServer()
	registration.RegisterRegistrationServer(register, d)
	for path, s := range map[string]*grpc.Server{filepath.Join(dir, "csi.sock"): driver, filepath.Join("plugins_registry", d.Name+"-reg.sock"): register} {
		path = filepath.Join(d.Kubelet, path)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := listen(path)
		if err != nil {
			return err
		}
		d.servers = append(d.servers, s)
		d.done.Go(func() { _ = s.Serve(l) })
	}
	return nil
}

// listen listens at a path of any length.
func listen(path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return l, err
}

// Stop ends the driver as a crash does, but removes its sockets. Its mounts stay.
func (d *Driver) Stop() {
	for _, s := range d.servers {
		s.Stop()
	}
	d.done.Wait()
	d.servers = nil
	_ = os.Remove(filepath.Join(d.Kubelet, "plugins_registry", d.Name+"-reg.sock"))
	_ = os.Remove(filepath.Join(d.Kubelet, "plugins", d.Name, "csi.sock"))
}

// Calls returns the names of the calls that changed something, in order.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Last returns the request of the last call of a method.
func (d *Driver) Last(method string) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last[method]
}

func (d *Driver) record(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method := filepath.Base(info.FullMethod)
	d.mu.Lock()
	if !strings.HasPrefix(method, "NodeGet") {
		d.calls = append(d.calls, method)
	}
	d.last[method] = request
	d.mu.Unlock()
	if d.Call != nil {
		if err := d.Call(ctx, method, request); err != nil {
			return nil, err
		}
	}
	return next(ctx, request)
}

// GetInfo implements registration.RegistrationServer.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.Name, Endpoint: filepath.Join(d.Public, "plugins", d.Name, "csi.sock"), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last["NotifyRegistrationStatus"] = s
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	out := &csi.NodeGetInfoResponse{NodeId: "node-of-" + d.Name, MaxVolumesPerNode: d.MaxVolumes}
	if d.Topology != nil {
		out.AccessibleTopology = &csi.Topology{Segments: d.Topology}
	}
	return out, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.Capabilities {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *Driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, bind(filepath.Join(d.Data, r.VolumeId), r.StagingTargetPath, false)
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.StagingTargetPath)
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	from := r.StagingTargetPath
	if from == "" {
		from = filepath.Join(d.Data, r.VolumeId)
	}
	return &csi.NodePublishVolumeResponse{}, bind(from, r.TargetPath, r.Readonly)
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements csi.NodeServer.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.GetRequiredBytes()}, nil
}

// bind mounts a directory at a target once.
func bind(from, target string, readOnly bool) error {
	if mounted(target) {
		return nil
	}
	for _, dir := range []string{from, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	err := unix.Mount(from, target, "", unix.MS_BIND, "")
	if err == nil && readOnly {
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func unmount(target string) error {
	for mounted(target) {
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

func mounted(path string) bool {
	var sx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &sx)
	return err == nil && sx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

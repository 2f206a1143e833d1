// Package csidriver is a CSI driver for tests, which records its calls. It bind mounts its volumes: directories, or
// device files that the test makes.
package csidriver

import (
	"context"
	"errors"
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

	"github.com/coracle-dev/coracle/test/nodeplugin"
)

// Driver serves the node service of CSI, and the controller and group controller services if they are set. Set its
// fields before Start.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	Name string
	// Kubelet is the directory shared with the agent, without symbolic links; Public is the same directory as
	// drivers see it.
	Kubelet, Public string
	// Data holds a directory for each volume.
	Data         string
	Capabilities []csi.NodeServiceCapability_RPC_Type
	Topology     map[string]string
	MaxVolumes   int64
	Controller   csi.ControllerServer
	Groups       csi.GroupControllerServer
	// Call, if set, runs at each call of the node service. It may return an error for the call or block.
	Call func(ctx context.Context, method string, request any) error

	mu    sync.Mutex
	calls []string
	last  map[string]any

	plugin *nodeplugin.Plugin
}

// Start serves the driver and registers it.
func (d *Driver) Start() error {
	d.last = map[string]any{}
	driver := grpc.NewServer(grpc.UnaryInterceptor(d.record))
	csi.RegisterIdentityServer(driver, d)
	csi.RegisterNodeServer(driver, d)
	if d.Controller != nil {
		csi.RegisterControllerServer(driver, d.Controller)
	}
	if d.Groups != nil {
		csi.RegisterGroupControllerServer(driver, d.Groups)
	}
	d.plugin = &nodeplugin.Plugin{
		Type:     registration.CSIPlugin,
		Name:     d.Name,
		Kubelet:  d.Kubelet,
		Public:   d.Public,
		Socket:   "csi.sock",
		Versions: []string{"1.0.0"},
	}
	return d.plugin.Start(driver)
}

// Stop ends the driver without a graceful shutdown and removes its sockets. Its mounts stay.
func (d *Driver) Stop() { d.plugin.Stop() }

// Registered returns the outcome of the last registration, or nil.
func (d *Driver) Registered() *registration.RegistrationStatus { return d.plugin.Registered() }

// Calls returns the names of the calls that changed state, in order.
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

func (d *Driver) record(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	next grpc.UnaryHandler) (any, error) {
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

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out := &csi.GetPluginCapabilitiesResponse{}
	if d.Controller != nil {
		for _, s := range []csi.PluginCapability_Service_Type{
			csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		} {
			out.Capabilities = append(out.Capabilities, service(s))
		}
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}})
	}
	if d.Groups != nil {
		out.Capabilities = append(out.Capabilities, service(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE))
	}
	return out, nil
}

func service(s csi.PluginCapability_Service_Type) *csi.PluginCapability {
	return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: s}}}
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
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
func (d *Driver) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.Capabilities {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *Driver) NodeStageVolume(_ context.Context,
	r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if r.VolumeCapability.GetBlock() != nil {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	return &csi.NodeStageVolumeResponse{}, bind(filepath.Join(d.Data, r.VolumeId), r.StagingTargetPath, false)
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context,
	r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unmount(r.StagingTargetPath)
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context,
	r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	from := r.StagingTargetPath
	if from == "" || r.VolumeCapability.GetBlock() != nil {
		from = filepath.Join(d.Data, r.VolumeId)
	}
	if r.VolumeCapability.GetBlock() != nil {
		file, err := os.OpenFile(r.TargetPath, os.O_CREATE, 0o600)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		_ = file.Close()
		return &csi.NodePublishVolumeResponse{}, mount(from, r.TargetPath, r.Readonly)
	}
	return &csi.NodePublishVolumeResponse{}, bind(from, r.TargetPath, r.Readonly)
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context,
	r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements csi.NodeServer.
func (d *Driver) NodeExpandVolume(_ context.Context,
	r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.GetRequiredBytes()}, nil
}

// bind mounts a directory at a target and creates both. It may be repeated.
func bind(from, target string, readOnly bool) error {
	for _, dir := range []string{from, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return mount(from, target, readOnly)
}

func mount(from, target string, readOnly bool) error {
	if mounted(target) {
		return nil
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

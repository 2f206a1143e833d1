// Package controller is the controller service of a CSI driver for tests. It runs on the machine with the volumes.
// A volume is a directory; a block volume is a device file of a loop device over an image file. All state is in
// file names, so the process may be killed at any time.
package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Suffixes of the names of files that are not volumes.
const (
	image    = ".image" // the file of a block volume
	attached = ".attached"
	snapshot = ".snapshot"
	building = ".building" // a copy that is not complete
)

// Server serves volumes below Data to one node. Capacity is the largest size of a volume, in bytes; it is also the
// free capacity that GetCapacity always reports.
type Server struct {
	csi.UnimplementedControllerServer

	Data     string
	Capacity int64
	Topology map[string]string
}

func (s *Server) path(id string) (string, error) {
	if !filepath.IsLocal(id) || strings.Contains(id, "/") {
		return "", status.Errorf(codes.InvalidArgument, "invalid name %q", id)
	}
	return filepath.Join(s.Data, id), nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (s *Server) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

// GetCapacity implements csi.ControllerServer.
func (s *Server) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: s.Capacity}, nil
}

// CreateVolume implements csi.ControllerServer.
func (s *Server) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	path, err := s.path(r.Name)
	if err != nil {
		return nil, err
	}
	size := r.CapacityRange.GetRequiredBytes()
	if size > s.Capacity {
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes are more than %d", size, s.Capacity)
	}
	from, err := s.source(r.VolumeContentSource)
	if err != nil {
		return nil, err
	}
	if r.VolumeCapabilities[0].GetBlock() != nil {
		err = createDevice(path, from, size)
	} else {
		err = createDirectory(path, from)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{
		Volume: &csi.Volume{
			VolumeId: r.Name, CapacityBytes: size, VolumeContext: r.Parameters, ContentSource: r.VolumeContentSource,
			AccessibleTopology: []*csi.Topology{{Segments: s.Topology}},
		},
	}, nil
}

// source returns the path of the volume or snapshot that a new volume copies, "" for an empty volume.
func (s *Server) source(c *csi.VolumeContentSource) (string, error) {
	id := c.GetVolume().GetVolumeId()
	if c.GetSnapshot() != nil {
		id = c.GetSnapshot().SnapshotId
	}
	if id == "" {
		return "", nil
	}
	path, err := s.path(id)
	if err != nil {
		return "", err
	}
	path = contents(path)
	if _, err := os.Stat(path); err != nil {
		return "", status.Error(codes.NotFound, err.Error())
	}
	return path, nil
}

func contents(path string) string {
	if exists(path + image) {
		return path + image
	}
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func createDirectory(path, from string) error {
	if exists(path) {
		return nil
	}
	if from == "" {
		return os.Mkdir(path, 0o777)
	}
	return copyTo(path, from)
}

// copyTo copies a file or directory. An interrupted copy leaves only a file with the suffix building.
func copyTo(path, from string) error {
	if exists(path) {
		return nil
	}
	part := path + building
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.CopyFS(part, os.DirFS(from))
	} else {
		err = copyFile(part, from)
	}
	if err != nil {
		return err
	}
	return os.Rename(part, path)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// createDevice makes a device file for a loop device over a file of size bytes. The file begins as a copy of from,
// if that is set.
func createDevice(path, from string, size int64) error {
	if exists(path) {
		return nil
	}
	if from != "" {
		if err := copyTo(path+image, from); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(path+image, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		return err
	}
	number, err := attachLoop(file)
	if err != nil {
		return err
	}
	return unix.Mknod(path, unix.S_IFBLK|0o600, number)
}

// attachLoop attaches a file to a free loop device and returns the device's number.
func attachLoop(file *os.File) (int, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer control.Close()
	for range 100 { // another process may take the device first
		free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("find a loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", free), os.O_RDWR, 0)
		if err != nil {
			return 0, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())})
		var st unix.Stat_t
		if err == nil {
			err = unix.Fstat(int(device.Fd()), &st)
		}
		device.Close()
		if err == nil {
			return int(st.Rdev), nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return 0, fmt.Errorf("configure loop device: %w", err)
		}
	}
	return 0, errors.New("no loop device is free")
}

// loop sends an ioctl request to the loop device of a block volume. It does nothing for other volumes.
func loop(path string, request uint) error {
	if !exists(path) || !exists(path+image) {
		return nil
	}
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	return unix.IoctlSetInt(int(device.Fd()), request, 0)
}

// DeleteVolume implements csi.ControllerServer.
func (s *Server) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	path, err := s.path(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if exists(path + attached) {
		return nil, status.Error(codes.FailedPrecondition, "the volume is attached")
	}
	if err := loop(path, unix.LOOP_CLR_FD); err != nil && !errors.Is(err, unix.ENXIO) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	for _, p := range []string{path, path + image, path + building} {
		if err := os.RemoveAll(p); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (s *Server) ControllerPublishVolume(_ context.Context,
	r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	path, err := s.path(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if !exists(path) {
		return nil, status.Error(codes.NotFound, "there is no such volume")
	}
	if err := os.WriteFile(path+attached, []byte(r.NodeId), 0o600); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"node": r.NodeId}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (s *Server) ControllerUnpublishVolume(_ context.Context,
	r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	path, err := s.path(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path + attached); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// Attached reports whether a volume is attached.
func (s *Server) Attached(id string) bool {
	path, err := s.path(id)
	return err == nil && exists(path+attached)
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (s *Server) ValidateVolumeCapabilities(_ context.Context,
	r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.VolumeCapabilities},
	}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (s *Server) ControllerExpandVolume(_ context.Context,
	r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	path, err := s.path(r.VolumeId)
	if err != nil {
		return nil, err
	}
	size := r.CapacityRange.GetRequiredBytes()
	if exists(path + image) {
		if err := errors.Join(os.Truncate(path+image, size), loop(path, unix.LOOP_SET_CAPACITY)); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// ControllerModifyVolume implements csi.ControllerServer.
func (s *Server) ControllerModifyVolume(context.Context,
	*csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// CreateSnapshot implements csi.ControllerServer.
func (s *Server) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	id := r.Name + snapshot
	path, err := s.path(id)
	if err != nil {
		return nil, err
	}
	from, err := s.path(r.SourceVolumeId)
	if err == nil {
		err = copyTo(path, contents(from))
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateSnapshotResponse{
		Snapshot: &csi.Snapshot{
			SnapshotId:     id,
			SourceVolumeId: r.SourceVolumeId,
			ReadyToUse:     true,
			CreationTime:   timestamppb.New(time.Now()),
		},
	}, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (s *Server) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	path, err := s.path(r.SnapshotId)
	if err == nil {
		err = os.RemoveAll(path)
	}
	return &csi.DeleteSnapshotResponse{}, err
}

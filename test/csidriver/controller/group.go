package controller

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// group is the suffix of an empty file that marks a group whose snapshots are all complete.
const group = ".group"

// GroupServer takes group snapshots of the volumes of a Server.
type GroupServer struct {
	csi.UnimplementedGroupControllerServer

	*Server
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (s *GroupServer) GroupControllerGetCapabilities(context.Context,
	*csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{
		Capabilities: []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{
				Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
			}}}},
	}, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer. If a volume is missing, it takes no snapshot.
func (s *GroupServer) CreateVolumeGroupSnapshot(_ context.Context,
	r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	for _, id := range r.SourceVolumeIds {
		if path, err := s.path(id); err != nil || !exists(path) {
			return nil, status.Errorf(codes.NotFound, "there is no volume %q", id)
		}
	}
	path, err := s.path(r.Name + group)
	if err != nil {
		return nil, err
	}
	out := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: r.Name + group,
		ReadyToUse:      true,
		CreationTime:    timestamppb.New(time.Now()),
	}
	for _, id := range r.SourceVolumeIds {
		taken, err := s.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{
			Name: r.Name + "." + id, SourceVolumeId: id,
		})
		if err != nil {
			return nil, err
		}
		taken.Snapshot.GroupSnapshotId = out.GroupSnapshotId
		out.Snapshots = append(out.Snapshots, taken.Snapshot)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: out}, nil
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (s *GroupServer) GetVolumeGroupSnapshot(_ context.Context,
	r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	out := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: r.GroupSnapshotId,
		ReadyToUse:      true,
		CreationTime:    timestamppb.New(time.Now()),
	}
	for _, id := range append([]string{r.GroupSnapshotId}, r.SnapshotIds...) {
		if path, err := s.path(id); err != nil || !exists(path) {
			return nil, status.Errorf(codes.NotFound, "there is no %q", id)
		}
	}
	for _, id := range r.SnapshotIds {
		out.Snapshots = append(out.Snapshots, &csi.Snapshot{
			SnapshotId:      id,
			GroupSnapshotId: r.GroupSnapshotId,
			ReadyToUse:      true,
			CreationTime:    out.CreationTime,
		})
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: out}, nil
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (s *GroupServer) DeleteVolumeGroupSnapshot(_ context.Context,
	r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	var errs []error
	for _, id := range append([]string{r.GroupSnapshotId}, r.SnapshotIds...) {
		path, err := s.path(id)
		if err == nil {
			err = os.RemoveAll(path)
		}
		errs = append(errs, err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, errors.Join(errs...)
}

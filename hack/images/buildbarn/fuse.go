package main

// noFUSE replaces the worker's FUSE mounts, which do not compile without Buildbarn's patches of go-fuse.
const noFUSE = `package configuration

import (
	"github.com/buildbarn/bb-remote-execution/pkg/filesystem/virtual"
	"github.com/buildbarn/bb-storage/pkg/program"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (*fuseMount) Expose(program.Group, virtual.Directory) error {
	return status.Error(codes.Unimplemented, "This build of bb_worker has no FUSE. Use a native build directory.")
}
`

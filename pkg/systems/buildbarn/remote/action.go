package remote

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Action is a command, its inputs and its outputs.
type Action struct {
	Arguments []string
	// Environment is the command's whole environment, except for variables that workers add.
	Environment map[string]string
	// Platform selects the worker by its platform properties.
	Platform map[string]string
	// Inputs are files by slash-separated path below the working directory.
	Inputs map[string][]byte
	// Outputs are the paths of the files and directories to keep.
	Outputs []string
	// Timeout bounds the execution; 0 means the farm's default.
	Timeout time.Duration
	// Salt makes equal actions differ, so that one does not hit the other's cached result.
	Salt []byte
}

// Blobs returns the action's digest, and all blobs that must be uploaded before it is executed.
func (a Action) Blobs() (Digest, []Blob, error) {
	if len(a.Arguments) == 0 {
		return Digest{}, nil, fmt.Errorf("an action needs a command")
	}
	for _, name := range append(slices.Sorted(maps.Keys(a.Inputs)), a.Outputs...) {
		if name == "" || name == "." || name != path.Clean(name) || path.IsAbs(name) || name == ".." ||
			strings.HasPrefix(name, "../") {
			return Digest{}, nil, fmt.Errorf("%q is not a path below the working directory", name)
		}
	}
	platform := &remoteexecution.Platform{}
	for _, k := range slices.Sorted(maps.Keys(a.Platform)) {
		platform.Properties = append(platform.Properties, &remoteexecution.Platform_Property{Name: k, Value: a.Platform[k]})
	}
	command := &remoteexecution.Command{Arguments: a.Arguments, OutputPaths: slices.Sorted(slices.Values(a.Outputs))}
	for _, k := range slices.Sorted(maps.Keys(a.Environment)) {
		command.EnvironmentVariables = append(command.EnvironmentVariables, &remoteexecution.Command_EnvironmentVariable{
			Name: k, Value: a.Environment[k],
		})
	}
	root, blobs, err := tree(a.Inputs)
	if err != nil {
		return Digest{}, nil, err
	}
	commandBlob, err := message(command)
	if err != nil {
		return Digest{}, nil, err
	}
	action := &remoteexecution.Action{
		CommandDigest:   commandBlob.Digest.proto(),
		InputRootDigest: root.proto(),
		Platform:        platform,
		Salt:            a.Salt,
	}
	if a.Timeout > 0 {
		action.Timeout = durationpb.New(a.Timeout)
	}
	actionBlob, err := message(action)
	if err != nil {
		return Digest{}, nil, err
	}
	return actionBlob.Digest, append(blobs, commandBlob, actionBlob), nil
}

// tree returns the digest of a directory with these files, and the blobs of everything in it.
func tree(files map[string][]byte) (Digest, []Blob, error) {
	folder := &remoteexecution.Directory{}
	below := map[string]map[string][]byte{}
	var blobs []Blob
	for name, data := range files {
		if first, rest, nested := strings.Cut(name, "/"); nested {
			if below[first] == nil {
				below[first] = map[string][]byte{}
			}
			below[first][rest] = data
			continue
		}
		b := NewBlob(data)
		blobs = append(blobs, b)
		folder.Files = append(folder.Files, &remoteexecution.FileNode{Name: name, Digest: b.Digest.proto()})
	}
	for name, files := range below {
		if slices.ContainsFunc(folder.Files, func(f *remoteexecution.FileNode) bool { return f.Name == name }) {
			return Digest{}, nil, fmt.Errorf("%q is both a file and a folder", name)
		}
		d, inside, err := tree(files)
		if err != nil {
			return Digest{}, nil, err
		}
		blobs = append(blobs, inside...)
		folder.Directories = append(folder.Directories, &remoteexecution.DirectoryNode{Name: name, Digest: d.proto()})
	}
	slices.SortFunc(folder.Files, func(a, b *remoteexecution.FileNode) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(folder.Directories, func(a, b *remoteexecution.DirectoryNode) int {
		return cmp.Compare(a.Name, b.Name)
	})
	b, err := message(folder)
	return b.Digest, append(blobs, b), err
}

// Package schema checks evaluated configurations of Buildbarn's programs against Buildbarn's own protocol buffers.
//
// Its invariant: the program's own parser accepts every configuration that this package accepts. buildbarn.binpb.gz is
// a FileDescriptorSet of bb-storage dc342e1799d7 and bb-remote-execution cd89f0554d18. hack/buildbarn/schema generates
// it, and the tests of hack/buildbarn compare it. Only bb_browser's ApplicationConfiguration is written by hand there,
// because its module does not resolve: the invariant is not tested for its fields.
package schema

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

//go:embed buildbarn.binpb.gz
var packed []byte

const maxBytes = 1 << 20

// Schema describes the configurations of all programs. It is a few megabytes in memory.
type Schema struct {
	files *protoregistry.Files
	json  protojson.UnmarshalOptions
}

// Load unpacks the schema.
func Load() (*Schema, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	raw, err := bounded.All(z, maxBytes)
	if err != nil {
		return nil, err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	return &Schema{
		files: files, json: protojson.UnmarshalOptions{Resolver: dynamicpb.NewTypes(files), RecursionLimit: maxDepth},
	}, nil
}

const maxDepth = 200

// Error is a fault in a configuration that keeps a program from starting.
type Error struct {
	// Path locates the fault by field names, indexes and keys, as in grpcServers[0].listenAddresses. Field is the
	// path's last field name.
	Path, Field string
	// Problem is written for users. Unknown means that the schema has no such field; another version of the program
	// may have it.
	Problem string
	Unknown bool
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Check checks the JSON configuration of a program (scheduler, storage, worker, runner or browser). It returns the
// servers, clients, files, queues and routes in it. The error is an *Error if the program would not start with the
// configuration.
func (s *Schema) Check(program string, text []byte) (protocol.Facts, error) {
	var facts protocol.Facts
	d, err := s.files.FindDescriptorByName(protoreflect.FullName(prefix + "bb_" + program + ".ApplicationConfiguration"))
	if err != nil {
		return facts, fmt.Errorf("the program %s: %w", program, err)
	}
	m := dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
	if err := s.json.Unmarshal(text, m); err != nil {
		found := s.locate("", m.Descriptor(), text, 0)
		if found == nil {
			found = &Error{Problem: reason(err)}
		}
		return facts, found
	}
	for _, visit := range []func(message) *Error{missing, unusable, collect(&facts)} {
		if e := walk(message{Message: m}, visit); e != nil {
			return facts, e
		}
	}
	return facts, nil
}

var errNotObject = errors.New("is not an object")

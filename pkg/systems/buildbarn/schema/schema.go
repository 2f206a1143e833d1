// Package schema checks evaluated configurations of Buildbarn's programs against Buildbarn's own protocol buffers.
//
// Its invariant: what it accepts, the program's own parser does too. buildbarn.binpb.gz is a FileDescriptorSet of
// bb-storage dc342e1799d7 and bb-remote-execution cd89f0554d18, which hack/buildbarn/schema makes and hack/buildbarn's
// tests compare. bb_browser's ApplicationConfiguration alone is written by hand there, as its module does not resolve:
// for its own fields the invariant is not tested.
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

// maxBytes bounds the schema, unpacked.
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

// maxDepth bounds how deep a configuration is nested.
const maxDepth = 200

// Error is what a program would not start with.
type Error struct {
	// Path is where: names of fields, indexes and keys, as in grpcServers[0].listenAddresses. Field is the last name of
	// it.
	Path, Field string
	// Problem is for people. Unknown is true if the program's version may matter: there is no such field.
	Problem string
	Unknown bool
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Check checks the configuration, in JSON, of a program: scheduler, storage, worker, runner or browser, and returns
// what it says about the farm around the program. The error is an *Error if the program would refuse the configuration,
// or would not start with it.
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

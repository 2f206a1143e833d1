package main

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/buildbarn/bb-remote-execution/pkg/proto/configuration/bb_runner"
	"github.com/buildbarn/bb-remote-execution/pkg/proto/configuration/bb_scheduler"
	"github.com/buildbarn/bb-remote-execution/pkg/proto/configuration/bb_worker"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/auth"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/bb_storage"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/blobstore"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/global"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/http/server"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/jmespath"
	"github.com/buildbarn/bb-storage/pkg/proto/configuration/zstd"
)

// Set describes the configurations of all programs: the messages reachable from them, without comments and services.
func Set() (*descriptorpb.FileDescriptorSet, error) {
	s := &set{kept: map[protoreflect.FullName]bool{}, files: map[string]protoreflect.FileDescriptor{}}
	for _, m := range []proto.Message{
		&bb_storage.ApplicationConfiguration{},
		&bb_scheduler.ApplicationConfiguration{},
		&bb_worker.ApplicationConfiguration{},
		&bb_runner.ApplicationConfiguration{},
	} {
		s.message(m.ProtoReflect().Descriptor())
	}
	file := s.browser()
	out := &descriptorpb.FileDescriptorSet{}
	added := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if added[f.Path()] || s.files[f.Path()] == nil {
			return
		}
		added[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		out.File = append(out.File, s.trimmed(f))
	}
	for _, path := range s.paths() {
		add(s.files[path])
	}
	out.File = append(out.File, file)
	_, err := protodesc.NewFiles(out)
	return out, err
}

// set is the messages and enumerations to keep, and the files that declare them.
type set struct {
	kept  map[protoreflect.FullName]bool
	files map[string]protoreflect.FileDescriptor
}

func (s *set) paths() (out []string) {
	for path := range s.files {
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}

func (s *set) keep(d protoreflect.Descriptor) bool {
	if s.kept[d.FullName()] {
		return false
	}
	s.kept[d.FullName()] = true
	s.files[d.ParentFile().Path()] = d.ParentFile()
	if outer, ok := d.Parent().(protoreflect.MessageDescriptor); ok {
		s.message(outer)
	}
	return true
}

func (s *set) message(m protoreflect.MessageDescriptor) {
	if !s.keep(m) {
		return
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.Message() != nil {
			s.message(f.Message())
		}
		if f.Enum() != nil {
			s.keep(f.Enum())
		}
	}
}

// trimmed returns a file with only the kept messages and enumerations.
func (s *set) trimmed(f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	from := protodesc.ToFileDescriptorProto(f)
	to := &descriptorpb.FileDescriptorProto{Name: from.Name, Package: from.Package, Syntax: from.Syntax}
	for _, path := range from.Dependency {
		if s.files[path] != nil {
			to.Dependency = append(to.Dependency, path)
		}
	}
	to.MessageType = s.messages(f.Package(), from.MessageType)
	to.EnumType = s.enums(f.Package(), from.EnumType)
	return to
}

func (s *set) messages(in protoreflect.FullName,
	list []*descriptorpb.DescriptorProto) (out []*descriptorpb.DescriptorProto) {
	for _, m := range list {
		name := in.Append(protoreflect.Name(m.GetName()))
		if !s.kept[name] {
			continue
		}
		if !m.GetOptions().GetMapEntry() {
			m.Options = nil
		}
		m.NestedType, m.EnumType = s.messages(name, m.NestedType), s.enums(name, m.EnumType)
		m.ReservedName, m.ReservedRange = nil, nil
		for _, f := range m.Field {
			f.Options, f.JsonName = nil, nil // JSON names follow from the field names
		}
		out = append(out, m)
	}
	return out
}

func (s *set) enums(in protoreflect.FullName,
	list []*descriptorpb.EnumDescriptorProto) (out []*descriptorpb.EnumDescriptorProto) {
	for _, e := range list {
		if s.kept[in.Append(protoreflect.Name(e.GetName()))] {
			e.Options = nil
			for _, v := range e.Value {
				v.Options = nil
			}
			out = append(out, e)
		}
	}
	return out
}

// browser describes the configuration of bb_browser, whose module is not a dependency: its field names and their
// types, which are bb-storage's.
func (s *set) browser() *descriptorpb.FileDescriptorProto {
	m := &descriptorpb.DescriptorProto{Name: proto.String("ApplicationConfiguration")}
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("bb_browser.proto"), Package: proto.String("buildbarn.configuration.bb_browser"),
		Syntax: proto.String("proto3"), MessageType: []*descriptorpb.DescriptorProto{m},
	}
	field := func(name string, kind descriptorpb.FieldDescriptorProto_Type,
		label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{
			Name:   &name,
			Number: proto.Int32(int32(len(m.Field) + 1)),
			Type:   &kind,
			Label:  &label,
		}
		m.Field = append(m.Field, f)
		return f
	}
	one, many := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	message := func(name string, label descriptorpb.FieldDescriptorProto_Label, of proto.Message) {
		d := of.ProtoReflect().Descriptor()
		s.message(d)
		field(name, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, label).TypeName = proto.String("." + string(d.FullName()))
		if path := d.ParentFile().Path(); !slices.Contains(file.Dependency, path) {
			file.Dependency = append(file.Dependency, path)
		}
	}
	message("blobstore", one, &blobstore.BlobstoreConfiguration{})
	message("http_servers", many, &server.Configuration{})
	message("global", one, &global.Configuration{})
	message("authorizer", one, &auth.AuthorizerConfiguration{})
	message("initial_size_class_cache", one, &blobstore.BlobAccessConfiguration{})
	message("file_system_access_cache", one, &blobstore.BlobAccessConfiguration{})
	message("request_metadata_links_jmespath_expression", one, &jmespath.Expression{})
	message("zstd_pool", one, &zstd.PoolConfiguration{})
	field("maximum_message_size_bytes", descriptorpb.FieldDescriptorProto_TYPE_INT64, one)
	field("route_prefix", descriptorpb.FieldDescriptorProto_TYPE_STRING, one)
	field("bb_clientd_instance_name_prefix", descriptorpb.FieldDescriptorProto_TYPE_STRING, one)
	return file
}

package schema

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// required are, by message, the fields and the choices (oneof) without which the programs do not start, and the servers without which they do nothing.
// The messages are in the package buildbarn.configuration.
var required = map[protoreflect.FullName]string{
	"bb_storage.ApplicationConfiguration":             "grpc_servers content_addressable_storage",
	"bb_storage.NonScannableBlobAccessConfiguration":  "backend get_authorizer put_authorizer",
	"bb_storage.ScannableBlobAccessConfiguration":     "backend get_authorizer put_authorizer find_missing_authorizer",
	"bb_scheduler.ApplicationConfiguration":           "client_grpc_servers worker_grpc_servers content_addressable_storage action_router execute_authorizer modify_drains_authorizer kill_operations_authorizer synchronize_authorizer platform_queue_with_no_workers_timeout",
	"bb_worker.ApplicationConfiguration":              "blobstore scheduler build_directories input_download_concurrency output_upload_concurrency",
	"bb_worker.BuildDirectoryConfiguration":           "backend",
	"bb_worker.RunnerConfiguration":                   "endpoint concurrency",
	"bb_runner.ApplicationConfiguration":              "build_directory_path grpc_servers",
	"bb_browser.ApplicationConfiguration":             "http_servers blobstore authorizer",
	"blobstore.BlobstoreConfiguration":                "content_addressable_storage action_cache",
	"blobstore.BlobAccessConfiguration":               "backend",
	"blobstore.ShardingBlobAccessConfiguration":       "shards",
	"blobstore.ShardingBlobAccessConfiguration.Shard": "backend weight",
	"blobstore.MirroredBlobAccessConfiguration":       "backend_a backend_b replicator_a_to_b replicator_b_to_a",
	"blobstore.BlobReplicatorConfiguration":           "mode",
	"blobstore.LocalBlobAccessConfiguration":          "key_location_map_backend blocks_backend",
	"blockdevice.Configuration":                       "source",
	"auth.AuthorizerConfiguration":                    "policy",
	"grpc.ServerConfiguration":                        "authentication_policy",
	"grpc.AuthenticationPolicy":                       "policy",
	"grpc.ClientConfiguration":                        "address",
	"http.server.Configuration":                       "authentication_policy",
	"http.server.AuthenticationPolicy":                "policy",
	"scheduler.ActionRouterConfiguration":             "kind",
	"scheduler.SimpleActionRouterConfiguration":       "platform_key_extractor initial_size_class_analyzer",
	"scheduler.PlatformKeyExtractorConfiguration":     "kind",
	"scheduler.InvocationKeyExtractorConfiguration":   "kind",
	"scheduler.InitialSizeClassAnalyzerConfiguration": "default_execution_timeout maximum_execution_timeout",
}

const prefix = "buildbarn.configuration."

// missing finds the first message that lacks something.
func missing(path string, m protoreflect.Message) (found *Error) {
	d := m.Descriptor()
	for _, name := range strings.Fields(required[protoreflect.FullName(strings.TrimPrefix(string(d.FullName()), prefix))]) {
		if o := d.Oneofs().ByName(protoreflect.Name(name)); o != nil {
			if m.WhichOneof(o) == nil {
				var one []string
				for i := range o.Fields().Len() {
					one = append(one, o.Fields().Get(i).JSONName())
				}
				return &Error{Path: path, Problem: "has none of " + strings.Join(one, ", ")}
			}
			continue
		}
		if f := d.Fields().ByName(protoreflect.Name(name)); !m.Has(f) {
			return &Error{Path: path, Problem: fmt.Sprintf("the field %s is required", f.JSONName())}
		}
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if !m.Has(f) {
			continue
		}
		at, v := join(path, f.JSONName()), m.Get(f)
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			found = missingOfMap(at, v.Map())
		case f.IsList() && f.Message() != nil:
			for i := 0; i < v.List().Len() && found == nil; i++ {
				found = missing(at+"["+strconv.Itoa(i)+"]", v.List().Get(i).Message())
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			found = missing(at, v.Message())
		}
		if found != nil {
			if found.Field == "" {
				found.Field = f.JSONName()
			}
			return found
		}
	}
	return nil
}

func missingOfMap(path string, m protoreflect.Map) *Error {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	for _, k := range keys {
		if e := missing(fmt.Sprintf("%s[%q]", path, k.String()), m.Get(k).Message()); e != nil {
			return e
		}
	}
	return nil
}

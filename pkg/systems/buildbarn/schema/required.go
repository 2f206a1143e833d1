package schema

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// required lists, by message, the fields and oneofs that the programs need to start, and the servers without which they
// do nothing. The messages are in the package buildbarn.configuration.
var required = map[protoreflect.FullName]string{
	"bb_storage.ApplicationConfiguration":            "grpc_servers",
	"bb_storage.NonScannableBlobAccessConfiguration": "backend get_authorizer put_authorizer",
	"bb_storage.ScannableBlobAccessConfiguration":    "backend get_authorizer put_authorizer find_missing_authorizer",
	"bb_scheduler.ApplicationConfiguration": "client_grpc_servers worker_grpc_servers " +
		"content_addressable_storage action_router execute_authorizer modify_drains_authorizer kill_operations_authorizer " +
		"synchronize_authorizer platform_queue_with_no_workers_timeout",
	"bb_worker.ApplicationConfiguration": "blobstore scheduler build_directories " +
		"input_download_concurrency output_upload_concurrency",
	"bb_worker.BuildDirectoryConfiguration":              "backend runners",
	"bb_worker.RunnerConfiguration":                      "endpoint concurrency",
	"bb_scheduler.PredeclaredPlatformQueueConfiguration": "size_classes",
	"bb_runner.ApplicationConfiguration":                 "build_directory_path grpc_servers",
	"bb_browser.ApplicationConfiguration":                "http_servers blobstore authorizer",
	"blobstore.BlobstoreConfiguration":                   "content_addressable_storage action_cache",
	"blobstore.BlobAccessConfiguration":                  "backend",
	"blobstore.ShardingBlobAccessConfiguration":          "shards",
	"blobstore.ShardingBlobAccessConfiguration.Shard":    "backend weight",
	"blobstore.MirroredBlobAccessConfiguration":          "backend_a backend_b replicator_a_to_b replicator_b_to_a",
	"blobstore.BlobReplicatorConfiguration":              "mode",
	"blobstore.LocalBlobAccessConfiguration":             "key_location_map_backend blocks_backend",
	"blockdevice.Configuration":                          "source",
	"blockdevice.FileConfiguration":                      "path size_bytes",
	"auth.AuthorizerConfiguration":                       "policy",
	"grpc.ServerConfiguration":                           "authentication_policy",
	"grpc.AuthenticationPolicy":                          "policy",
	"grpc.ClientConfiguration":                           "address",
	"http.server.Configuration":                          "authentication_policy",
	"http.server.AuthenticationPolicy":                   "policy",
	"scheduler.ActionRouterConfiguration":                "kind",
	"scheduler.SimpleActionRouterConfiguration":          "platform_key_extractor initial_size_class_analyzer",
	"scheduler.PlatformKeyExtractorConfiguration":        "kind",
	"scheduler.InvocationKeyExtractorConfiguration":      "kind",
	"scheduler.InitialSizeClassAnalyzerConfiguration":    "default_execution_timeout maximum_execution_timeout",
}

// requiredWith maps, by message, a field to the field that the programs also need to start if the first is set.
var requiredWith = map[protoreflect.FullName]map[protoreflect.Name]protoreflect.Name{
	"bb_storage.ApplicationConfiguration": {"schedulers": "execute_authorizer"},
}

func missing(m message) *Error {
	d := m.Descriptor()
	for _, name := range strings.Fields(required[protoreflect.FullName(m.name())]) {
		if o := d.Oneofs().ByName(protoreflect.Name(name)); o != nil {
			if m.WhichOneof(o) == nil {
				var one []string
				for i := range o.Fields().Len() {
					one = append(one, o.Fields().Get(i).JSONName())
				}
				return &Error{Path: m.path, Problem: "has none of " + strings.Join(one, ", ")}
			}
			continue
		}
		if f := d.Fields().ByName(protoreflect.Name(name)); !m.Has(f) {
			return &Error{Path: m.path, Problem: fmt.Sprintf("the field %s is required", f.JSONName())}
		}
	}
	for name, needed := range requiredWith[protoreflect.FullName(m.name())] {
		has, needs := d.Fields().ByName(name), d.Fields().ByName(needed)
		if m.Has(has) && !m.Has(needs) {
			return &Error{
				Path: m.path, Problem: fmt.Sprintf("the field %s is required if %s is set", needs.JSONName(), has.JSONName()),
			}
		}
	}
	return nil
}

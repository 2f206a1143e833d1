package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

const metricsText = `
# TYPE buildbarn_builder_in_memory_build_queue_tasks_scheduled_total counter
buildbarn_builder_in_memory_build_queue_tasks_scheduled_total{assignment="Queue",do_not_cache="false",instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0"} 7
buildbarn_builder_in_memory_build_queue_tasks_scheduled_total{assignment="Worker",do_not_cache="true",instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0"} 3
# TYPE buildbarn_builder_in_memory_build_queue_tasks_queued_duration_seconds histogram
buildbarn_builder_in_memory_build_queue_tasks_queued_duration_seconds_bucket{instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0",le="+Inf"} 6
buildbarn_builder_in_memory_build_queue_tasks_queued_duration_seconds_sum{instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0"} 1
buildbarn_builder_in_memory_build_queue_tasks_queued_duration_seconds_count{instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0"} 6
# TYPE buildbarn_builder_in_memory_build_queue_tasks_executing_duration_seconds histogram
buildbarn_builder_in_memory_build_queue_tasks_executing_duration_seconds_bucket{grpc_code="",instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",result="Success",size_class="0",le="+Inf"} 4
buildbarn_builder_in_memory_build_queue_tasks_executing_duration_seconds_sum{grpc_code="",instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",result="Success",size_class="0"} 1
buildbarn_builder_in_memory_build_queue_tasks_executing_duration_seconds_count{grpc_code="",instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",result="Success",size_class="0"} 4
# TYPE buildbarn_builder_in_memory_build_queue_workers_created_total counter
buildbarn_builder_in_memory_build_queue_workers_created_total{instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0"} 5
buildbarn_builder_in_memory_build_queue_workers_created_total{instance_name_prefix="other",platform="{}",size_class="0"} 1
# TYPE buildbarn_builder_in_memory_build_queue_workers_removed_total counter
buildbarn_builder_in_memory_build_queue_workers_removed_total{instance_name_prefix="",platform="{\"properties\":[{\"name\":\"OSFamily\",\"value\":\"linux\"}]}",size_class="0",state="Idle"} 2
buildbarn_builder_in_memory_build_queue_workers_removed_total{instance_name_prefix="other",platform="{}",size_class="0",state="Idle"} 9
`

func TestQueues(t *testing.T) {
	families, err := Parse(strings.NewReader(metricsText))
	require.NoError(t, err)
	all := Queues(families)
	linux := []buildbarn.PlatformProperty{{Name: "OSFamily", Value: "linux"}}
	require.Len(t, all, 2)
	require.Equal(t, Queue{Queued: 4, Executing: 2, Workers: 3, Platform: linux},
		*Of(all, &buildbarn.WorkerScale{Platform: linux}))
	require.Zero(t, Of(all, &buildbarn.WorkerScale{InstanceNamePrefix: "other"}).Workers,
		"counters that are no sense are zero")
	require.Equal(t, &Queue{}, Of(all, &buildbarn.WorkerScale{}))
	require.Empty(t, Queues(nil))
}

func TestFillAndHits(t *testing.T) {
	families, err := Parse(strings.NewReader(`
# TYPE buildbarn_blobstore_block_device_backed_block_allocator_allocations_total counter
buildbarn_blobstore_block_device_backed_block_allocator_allocations_total{storage_type="ac"} 1e300
buildbarn_blobstore_block_device_backed_block_allocator_allocations_total{storage_type="cas"} 30
# TYPE buildbarn_blobstore_block_device_backed_block_allocator_releases_total counter
buildbarn_blobstore_block_device_backed_block_allocator_releases_total{storage_type="cas"} 2
# TYPE buildbarn_blobstore_blob_access_operations_duration_seconds histogram
buildbarn_blobstore_blob_access_operations_duration_seconds_count{backend_type="completeness_checking",grpc_code="OK",operation="Get",storage_type="ac"} 3
buildbarn_blobstore_blob_access_operations_duration_seconds_count{backend_type="completeness_checking",grpc_code="NotFound",operation="Get",storage_type="ac"} 1
buildbarn_blobstore_blob_access_operations_duration_seconds_count{backend_type="completeness_checking",grpc_code="Unavailable",operation="Get",storage_type="ac"} 9
buildbarn_blobstore_blob_access_operations_duration_seconds_count{backend_type="grpc",grpc_code="OK",operation="Get",storage_type="ac"} 7
`))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"cas": "80% full", "ac": "full"}, Fill(families))
	had, asked := Hits(families)
	require.EqualValues(t, 3, had)
	require.EqualValues(t, 4, asked)
	require.Empty(t, Fill(nil))
	first, err := Parse(strings.NewReader(metricAllocations + "{storage_type=\"cas\"} 27\n"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"cas": "under 77% full"}, Fill(first), "the first write allocates 27 blocks")
}

func TestParseIsBounded(t *testing.T) {
	_, err := Parse(strings.NewReader(strings.Repeat("a 1\n", maxMetrics/4+1)))
	require.ErrorContains(t, err, fmt.Sprintf("more than %d bytes", maxMetrics))
	_, err = Parse(strings.NewReader("{"))
	require.Error(t, err)
}

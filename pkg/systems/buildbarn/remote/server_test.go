package remote

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"github.com/bazelbuild/remote-apis/build/bazel/semver"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// farm is an in-process service that stores blobs. It executes an action by copying the file in/text to out/text.
type farm struct {
	remoteexecution.UnimplementedCapabilitiesServer
	remoteexecution.UnimplementedContentAddressableStorageServer
	remoteexecution.UnimplementedActionCacheServer
	remoteexecution.UnimplementedExecutionServer
	bytestream.UnimplementedByteStreamServer

	mu      sync.Mutex
	blobs   map[string][]byte
	results map[string]*remoteexecution.ActionResult
	// batches, streams, executions and waits count calls; executions counts Execute, waits WaitExecution.
	batches, streams, executions, waits int
	caps                                *remoteexecution.ServerCapabilities
	// execute and wait, if set, replace the farm's own handlers.
	execute func(action *remoteexecution.Action, s remoteexecution.Execution_ExecuteServer) error
	wait    func(s remoteexecution.Execution_WaitExecutionServer) error
	// lie, if set, changes the data of a download.
	lie func([]byte) []byte
	// forget drops results, so that the cache misses.
	forget bool
}

func newFarm() *farm {
	return &farm{
		blobs: map[string][]byte{}, results: map[string]*remoteexecution.ActionResult{},
		caps: &remoteexecution.ServerCapabilities{
			CacheCapabilities: &remoteexecution.CacheCapabilities{
				DigestFunctions:        []remoteexecution.DigestFunction_Value{remoteexecution.DigestFunction_SHA256},
				MaxBatchTotalSizeBytes: 1 << 20,
			},
			ExecutionCapabilities: &remoteexecution.ExecutionCapabilities{
				ExecEnabled: true, DigestFunction: remoteexecution.DigestFunction_SHA256,
			},
			LowApiVersion: &semver.SemVer{Major: 2}, HighApiVersion: &semver.SemVer{Major: 2, Minor: 3},
		},
	}
}

func (f *farm) serve(t *testing.T) *Client {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	remoteexecution.RegisterCapabilitiesServer(s, f)
	remoteexecution.RegisterContentAddressableStorageServer(s, f)
	remoteexecution.RegisterActionCacheServer(s, f)
	remoteexecution.RegisterExecutionServer(s, f)
	bytestream.RegisterByteStreamServer(s, f)
	go func() { _ = s.Serve(l) }()
	c, err := New(Config{Address: "farm:8980", Instance: "main", Dial: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		s.Stop()
	})
	return c
}

func (f *farm) GetCapabilities(_ context.Context,
	r *remoteexecution.GetCapabilitiesRequest) (*remoteexecution.ServerCapabilities, error) {
	if r.GetInstanceName() != "main" {
		return nil, status.Error(codes.InvalidArgument, "no such instance")
	}
	return f.caps, nil
}

func (f *farm) FindMissingBlobs(_ context.Context,
	r *remoteexecution.FindMissingBlobsRequest) (*remoteexecution.FindMissingBlobsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	response := &remoteexecution.FindMissingBlobsResponse{}
	for _, d := range r.GetBlobDigests() {
		if _, have := f.blobs[d.GetHash()]; !have {
			response.MissingBlobDigests = append(response.MissingBlobDigests, d)
		}
	}
	return response, nil
}

func (f *farm) BatchUpdateBlobs(_ context.Context,
	r *remoteexecution.BatchUpdateBlobsRequest) (*remoteexecution.BatchUpdateBlobsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches++
	response := &remoteexecution.BatchUpdateBlobsResponse{}
	for _, b := range r.GetRequests() {
		f.blobs[b.GetDigest().GetHash()] = b.GetData()
		response.Responses = append(response.Responses, &remoteexecution.BatchUpdateBlobsResponse_Response{
			Digest: b.GetDigest(),
		})
	}
	return response, nil
}

func (f *farm) Write(s bytestream.ByteStream_WriteServer) error {
	var data []byte
	var hash string
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.InvalidArgument, "the stream ended before its last piece")
		}
		if err != nil {
			return err
		}
		if name := r.GetResourceName(); name != "" {
			parts := strings.Split(name, "/")
			if len(parts) != 6 || parts[0] != "main" || parts[1] != "uploads" || parts[3] != "blobs" {
				return status.Errorf(codes.InvalidArgument, "resource %s", name)
			}
			hash = parts[4]
		}
		if r.GetWriteOffset() != int64(len(data)) {
			return status.Error(codes.InvalidArgument, "a gap")
		}
		if data = append(data, r.GetData()...); r.GetFinishWrite() {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams++
	f.blobs[hash] = data
	return s.SendAndClose(&bytestream.WriteResponse{CommittedSize: int64(len(data))})
}

func (f *farm) Read(r *bytestream.ReadRequest, s bytestream.ByteStream_ReadServer) error {
	f.mu.Lock()
	data, have := f.blobs[strings.Split(r.GetResourceName(), "/")[2]]
	f.mu.Unlock()
	if !have {
		return status.Error(codes.NotFound, "no such blob")
	}
	if f.lie != nil {
		data = f.lie(data)
	}
	for len(data) > 0 {
		n := min(len(data), 1000)
		if err := s.Send(&bytestream.ReadResponse{Data: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (f *farm) GetActionResult(_ context.Context,
	r *remoteexecution.GetActionResultRequest) (*remoteexecution.ActionResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if result, have := f.results[r.GetActionDigest().GetHash()]; have && !f.forget {
		return result, nil
	}
	return nil, status.Error(codes.NotFound, "no result")
}

func (f *farm) Execute(r *remoteexecution.ExecuteRequest, s remoteexecution.Execution_ExecuteServer) error {
	var action remoteexecution.Action
	f.mu.Lock()
	f.executions++
	err := proto.Unmarshal(f.blobs[r.GetActionDigest().GetHash()], &action)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.execute != nil {
		return f.execute(&action, s)
	}
	if err := s.Send(staged("op-1", remoteexecution.ExecutionStage_QUEUED)); err != nil {
		return err
	}
	return s.Send(done("op-1", f.result(r.GetActionDigest().GetHash())))
}

func (f *farm) result(action string) *remoteexecution.ExecuteResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := NewBlob(nil)
	for _, data := range maps.Clone(f.blobs) {
		if strings.HasPrefix(string(data), "a smoke test of ") {
			text = NewBlob(data)
		}
	}
	result := &remoteexecution.ActionResult{
		OutputFiles: []*remoteexecution.OutputFile{{Path: "out/text", Digest: text.Digest.proto()}}, StdoutRaw: text.Data,
		ExecutionMetadata: &remoteexecution.ExecutedActionMetadata{Worker: "worker\x1b[31m"},
	}
	f.results[action] = result
	return &remoteexecution.ExecuteResponse{Result: result}
}

func (f *farm) WaitExecution(r *remoteexecution.WaitExecutionRequest,
	s remoteexecution.Execution_WaitExecutionServer) error {
	f.mu.Lock()
	f.waits++
	f.mu.Unlock()
	return f.wait(s)
}

func staged(name string, stage remoteexecution.ExecutionStage_Value) *longrunningpb.Operation {
	metadata, _ := anypb.New(&remoteexecution.ExecuteOperationMetadata{Stage: stage})
	return &longrunningpb.Operation{Name: name, Metadata: metadata}
}

func done(name string, response *remoteexecution.ExecuteResponse) *longrunningpb.Operation {
	result, _ := anypb.New(response)
	return &longrunningpb.Operation{Name: name, Done: true, Result: &longrunningpb.Operation_Response{Response: result}}
}

func numbered(n, size int) []Blob {
	blobs := make([]Blob, n)
	for i := range blobs {
		data := make([]byte, size)
		copy(data, strconv.Itoa(i))
		blobs[i] = NewBlob(data)
	}
	return blobs
}

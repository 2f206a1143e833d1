package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// attempts bounds the attempts to start or follow an execution while a server is unavailable. They take about two
// minutes, which a farm needs at most to notice a lost worker or shard.
const attempts = 32

// Execution holds the options of an execution.
type Execution struct {
	// SkipCache executes the action even if the cache has a result.
	SkipCache bool
	// Progress, if not nil, is called with each new stage, such as QUEUED and EXECUTING, and with the reason of a
	// retry.
	Progress func(stage string)
}

// Result is the outcome of an action.
type Result struct {
	ExitCode int32
	// Stdout and Stderr are inline or in blobs.
	Stdout, Stderr Output
	// Files are the output files by path.
	Files map[string]Digest
	// Cached means that the result is from an earlier execution.
	Cached bool
	// Worker is the worker's own name.
	Worker string
	// Queued, Inputs, Ran and Outputs are the times for waiting for a worker, fetching the inputs, running, and
	// uploading the outputs. Zero means unknown.
	Queued, Inputs, Ran, Outputs time.Duration
	// Repeats counts the retries because a server was unavailable.
	Repeats int
}

// Output is an action's output, either inline or as a digest.
type Output struct {
	Raw    []byte
	Digest Digest
}

// Execute executes an action whose blobs are uploaded, and waits for its result. When a server becomes unavailable, it
// waits for the same operation or starts a new one. Neither executes an action again that has a result in the cache.
func (c *Client) Execute(ctx context.Context, action Digest, how Execution) (*Result, error) {
	r := run{client: c, how: how, action: action}
	again := backoff.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second, Jitter: true}
	for {
		result, err := r.once(ctx)
		if err == nil {
			result.Repeats = r.repeats
			return result, nil
		}
		if r.repeats++; status.Code(err) != codes.Unavailable || r.repeats == attempts {
			return nil, err
		}
		r.say("asking again: " + printable(status.Convert(err).Message()))
		if !again.Wait(ctx) {
			return nil, err
		}
	}
}

type run struct {
	client    *Client
	how       Execution
	action    Digest
	operation string
	said      string
	repeats   int
}

// once follows one stream of the operation until it ends.
func (r *run) once(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	for {
		op, err := changes.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, status.Error(codes.Unavailable, "the server ended the stream of the operation before its result")
		case status.Code(err) == codes.NotFound && r.operation != "":
			r.operation = "" // the scheduler restarted, or another one answered
			return nil, status.Error(codes.Unavailable, "the scheduler does not know the operation any more")
		case err != nil:
			return nil, err
		}
		r.operation = op.GetName()
		r.report(op)
		if !op.GetDone() {
			continue
		}
		result, err := r.client.resultOf(op)
		if err != nil {
			r.operation = ""
		}
		return result, err
	}
}

func (r *run) open(ctx context.Context) (interface {
	Recv() (*longrunningpb.Operation, error)
}, error) {
	if r.operation != "" {
		return r.client.execution.WaitExecution(ctx, &remoteexecution.WaitExecutionRequest{Name: r.operation})
	}
	return r.client.execution.Execute(ctx, &remoteexecution.ExecuteRequest{
		InstanceName: r.client.instance, ActionDigest: r.action.proto(),
		DigestFunction:  remoteexecution.DigestFunction_SHA256,
		SkipCacheLookup: r.how.SkipCache, InlineStdout: true, InlineStderr: true,
	})
}

func (r *run) report(op *longrunningpb.Operation) {
	var metadata remoteexecution.ExecuteOperationMetadata
	if op.GetMetadata().UnmarshalTo(&metadata) == nil {
		r.say(metadata.GetStage().String())
	}
}

// say reports progress, unless it equals the last report.
func (r *run) say(text string) {
	if text != r.said && r.how.Progress != nil {
		r.how.Progress(text)
	}
	r.said = text
}

func (c *Client) resultOf(op *longrunningpb.Operation) (*Result, error) {
	if err := status.FromProto(op.GetError()).Err(); err != nil {
		return nil, err
	}
	var response remoteexecution.ExecuteResponse
	if err := op.GetResponse().UnmarshalTo(&response); err != nil {
		return nil, fmt.Errorf("the operation has no result: %w", err)
	}
	if err := status.FromProto(response.GetStatus()).Err(); err != nil {
		return nil, err
	}
	if response.GetResult() == nil {
		return nil, errors.New("the operation has ended without a result")
	}
	result, err := converted(response.GetResult())
	if err == nil {
		result.Cached = response.GetCachedResult()
	}
	return result, err
}

// Cached returns the result of an action from the action cache, or nil if there is none.
func (c *Client) Cached(ctx context.Context, action Digest) (*Result, error) {
	got, err := c.cache.GetActionResult(ctx, &remoteexecution.GetActionResultRequest{
		InstanceName: c.instance, ActionDigest: action.proto(), DigestFunction: remoteexecution.DigestFunction_SHA256,
	})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	result, err := converted(got)
	if err == nil {
		result.Cached = true
	}
	return result, err
}

// Text returns an output of at most limit bytes, whether it is inline or in a blob.
func (c *Client) Text(ctx context.Context, o Output, limit int64) ([]byte, error) {
	if len(o.Raw) > 0 || o.Digest.Size == 0 {
		return o.Raw[:min(int64(len(o.Raw)), limit)], nil
	}
	return c.Download(ctx, o.Digest, limit)
}

func converted(got *remoteexecution.ActionResult) (*Result, error) {
	m := got.GetExecutionMetadata()
	r := &Result{
		ExitCode: got.GetExitCode(), Worker: m.GetWorker(), Files: map[string]Digest{},
		Queued:  between(m.GetQueuedTimestamp(), m.GetWorkerStartTimestamp()),
		Inputs:  between(m.GetInputFetchStartTimestamp(), m.GetInputFetchCompletedTimestamp()),
		Ran:     between(m.GetExecutionStartTimestamp(), m.GetExecutionCompletedTimestamp()),
		Outputs: between(m.GetOutputUploadStartTimestamp(), m.GetOutputUploadCompletedTimestamp()),
	}
	for _, f := range got.GetOutputFiles() {
		d, err := digestOf(f.GetDigest())
		if err != nil {
			return nil, err
		}
		r.Files[f.GetPath()] = d
	}
	var err error
	if r.Stdout, err = output(got.GetStdoutRaw(), got.GetStdoutDigest()); err != nil {
		return nil, err
	}
	r.Stderr, err = output(got.GetStderrRaw(), got.GetStderrDigest())
	return r, err
}

func output(raw []byte, digest *remoteexecution.Digest) (Output, error) {
	if len(raw) > 0 || digest == nil {
		return Output{Raw: raw}, nil
	}
	d, err := digestOf(digest)
	return Output{Digest: d}, err
}

func between(a, b *timestamppb.Timestamp) time.Duration {
	if a == nil || b == nil {
		return 0
	}
	return max(0, b.AsTime().Sub(a.AsTime()))
}

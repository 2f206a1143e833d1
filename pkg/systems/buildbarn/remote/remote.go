// Package remote is a client of the Remote Execution API, version 2 (github.com/bazelbuild/remote-apis): capabilities,
// blobs, the action cache and execution. It is made for testing a build farm, not for building. Its invariant:
// responses are bounded before they are stored, and blobs are verified against their digests.
package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"github.com/bazelbuild/remote-apis/build/bazel/semver"
	"google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxMessage bounds received messages, in bytes: gRPC's default, which servers expect of clients.
	maxMessage = 4 << 20
	// maxBatch bounds the bytes of blobs in one batch; larger blobs are streamed. Servers may require less.
	maxBatch   = 2 << 20
	maxDigests = 1000
	// chunk is the number of bytes of a blob per message of a stream.
	chunk = 64 << 10
)

// retries makes gRPC retry idempotent calls while a server starts: up to twelve attempts in about five seconds.
const retries = `{"methodConfig": [{
	"name": [{"service": "build.bazel.remote.execution.v2.Capabilities"}, {"service": "build.bazel.remote.execution.v2.ContentAddressableStorage"},
		{"service": "build.bazel.remote.execution.v2.ActionCache"}],
	"retryPolicy": {"maxAttempts": 12, "initialBackoff": "0.1s", "maxBackoff": "0.5s", "backoffMultiplier": 1.5, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// Config configures a Client.
type Config struct {
	// Address is host:port.
	Address string
	// Instance is the name of the instance; it may be empty.
	Instance string
	// TLS is nil for plain text.
	TLS *tls.Config
	// Token, if not empty, is sent with each call (RFC 6750). It needs TLS.
	Token string
	// Dial is appended to the client's own dial options, for tests.
	Dial []grpc.DialOption
}

// Validate reports the first fault of the address, the token or the instance name.
func (c Config) Validate() error {
	if c.Address == "" || strings.Contains(c.Address, "/") {
		return fmt.Errorf("the address %q is not host:port", c.Address)
	}
	if c.Token != "" && c.TLS == nil {
		return errors.New("a token needs TLS, because anyone on the network could read it")
	}
	for part := range strings.SplitSeq(c.Instance, "/") {
		if slices.Contains([]string{"blobs", "uploads", "actions", "actionResults", "operations", "capabilities"}, part) {
			return fmt.Errorf("the instance name %q contains %q, which the Remote Execution API reserves", c.Instance, part)
		}
	}
	return nil
}

// Client is a connection to one instance. It is safe for concurrent use.
type Client struct {
	conn      *grpc.ClientConn
	instance  string
	batch     int64
	caps      remoteexecution.CapabilitiesClient
	storage   remoteexecution.ContentAddressableStorageClient
	cache     remoteexecution.ActionCacheClient
	execution remoteexecution.ExecutionClient
	bytes     bytestream.ByteStreamClient
}

// New returns a client. It connects with its first call.
func New(c Config) (*Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if c.TLS != nil {
		transport = credentials.NewTLS(c.TLS)
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithDefaultServiceConfig(retries), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithMaxCallAttempts(12), // gRPC's own limit is five
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  100 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   500 * time.Millisecond,
			}, MinConnectTimeout: 5 * time.Second,
		}),
	}, c.Dial...)
	if c.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(c.Token)))
	}
	// The passthrough resolver dials the address as it is, so that its text cannot select another resolver.
	conn, err := grpc.NewClient("passthrough:///"+c.Address, options...)
	if err != nil {
		return nil, err
	}
	return &Client{
		conn: conn, instance: c.Instance, batch: maxBatch,
		caps: remoteexecution.NewCapabilitiesClient(conn), storage: remoteexecution.NewContentAddressableStorageClient(conn),
		cache: remoteexecution.NewActionCacheClient(conn), execution: remoteexecution.NewExecutionClient(conn),
		bytes: bytestream.NewByteStreamClient(conn),
	}, nil
}

type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Capabilities are the capabilities of an instance.
type Capabilities struct {
	// Oldest and Newest are versions of the API.
	Oldest, Newest string
	// Execution means that it executes actions, CacheUpdates that clients may write to the action cache.
	Execution, CacheUpdates bool
	// Batch bounds the bytes of a batch; at most 2 MiB.
	Batch int64
}

// Capabilities asks the instance for its capabilities. It fails if the service lacks SHA-256 or version 2.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	got, err := c.caps.GetCapabilities(ctx, &remoteexecution.GetCapabilitiesRequest{InstanceName: c.instance})
	if err != nil {
		return Capabilities{}, err
	}
	cache, execution := got.GetCacheCapabilities(), got.GetExecutionCapabilities()
	if cache == nil {
		return Capabilities{}, errors.New("the service has no content-addressable storage")
	}
	sha256 := remoteexecution.DigestFunction_SHA256
	if !slices.Contains(cache.GetDigestFunctions(), sha256) {
		return Capabilities{}, errors.New("the service does not support SHA-256")
	}
	if high := got.GetHighApiVersion(); high != nil && high.GetMajor() < 2 || got.GetLowApiVersion().GetMajor() > 2 {
		return Capabilities{}, fmt.Errorf("the service supports versions %s to %s of the API, not 2",
			version(got.GetLowApiVersion()), version(high))
	}
	caps := Capabilities{
		Oldest: version(got.GetLowApiVersion()),
		Newest: version(got.GetHighApiVersion()),
		Batch:  maxBatch,
	}
	caps.CacheUpdates = cache.GetActionCacheUpdateCapabilities().GetUpdateEnabled()
	caps.Execution = execution.GetExecEnabled() &&
		(execution.GetDigestFunction() == sha256 || slices.Contains(execution.GetDigestFunctions(), sha256))
	// A server without its own limit is limited by the size of messages.
	if limit := cache.GetMaxBatchTotalSizeBytes(); limit > 0 {
		caps.Batch = min(caps.Batch, limit)
	}
	return caps, nil
}

// Limit reduces batches to the server's limit. Call it before using the client concurrently.
func (c *Client) Limit(caps Capabilities) { c.batch = caps.Batch }

func version(v *semver.SemVer) string {
	return fmt.Sprintf("%d.%d", v.GetMajor(), v.GetMinor())
}

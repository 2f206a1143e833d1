package plugins

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/coracle-dev/coracle/pkg/base/run"
	hostsocket "github.com/coracle-dev/coracle/pkg/node/host/socket"
)

const (
	maxConnections = 64 // per socket
	maxStreams     = 8  // per connection
	maxRequest     = 64 << 10
	idle           = time.Minute // until a connection without requests is closed
)

// Serve serves gRPC at a socket below the directory until ctx is done. It replaces an existing socket of that name.
// A request that panics fails, without an effect on others.
func (d Dir) Serve(ctx context.Context, guard *run.Guard, rel string, register func(*grpc.Server),
	options ...grpc.ServerOption) error {
	path := filepath.Join(d.root, rel)
	l, err := hostsocket.ListenUnix(path)
	if err != nil {
		return fmt.Errorf("serve %s: %w", filepath.Join(d.public, rel), err)
	}
	server := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(10*time.Second), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idle}),
		grpc.ChainUnaryInterceptor(guarded(guard)), grpc.ChainStreamInterceptor(guardedStream(guard)))...)
	register(server)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err = server.Serve(netutil.LimitListener(l, maxConnections))
	server.Stop() // also after an error, to end the requests
	if ctx.Err() != nil {
		return nil
	}
	return err
}

var errPanic = status.Error(codes.Internal, "node agent: internal error; see the agent's log")

func guarded(guard *run.Guard) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler) (response any, err error) {
		if guard.Do(info.FullMethod, func() { response, err = handler(ctx, request) }) != nil {
			return nil, errPanic
		}
		return response, err
	}
}

func guardedStream(guard *run.Guard) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
		handler grpc.StreamHandler) (err error) {
		if guard.Do(info.FullMethod, func() { err = handler(server, stream) }) != nil {
			return errPanic
		}
		return err
	}
}

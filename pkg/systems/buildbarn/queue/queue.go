// Package queue asks a Buildbarn scheduler which workers are busy, and tells it which workers will be removed or were
// lost. It makes four calls of buildbarn.buildqueuestate.BuildQueueState (pkg/proto/buildqueuestate of
// bb-remote-execution). It encodes their messages itself, because that module depends on a whole build farm. Its
// invariant: a scheduler's answers are bounded, and a call ends within two seconds.
package queue

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

const (
	wait      = 2 * time.Second
	linger    = wait / 4 // how long Terminate waits for one pod's workers
	atOnce    = 100      // concurrent terminations
	maxBytes  = 4 << 20  // per answer
	pageSize  = 1000     // workers per answer
	maxPages  = 100
	maxQueues = 1000
	service   = "/buildbarn.buildqueuestate.BuildQueueState/"
)

// Scheduler is the endpoint where a scheduler serves the state of its queue.
type Scheduler struct {
	// Address is host:port.
	Address string
	// TLS is nil for plain text.
	TLS *tls.Config

	wait, linger time.Duration // set by tests; 0 means the constant of that name
}

// Name names a queue. The properties of the platform are sorted by name and value.
type Name struct {
	InstanceNamePrefix string
	Platform           []buildbarn.PlatformProperty
}

// PodKey is the key in a worker's ID under which rendered configurations put the name of its pod.
const PodKey = "pod"

// Busy returns how many actions the workers of each pod execute. It omits idle pods.
func (s Scheduler) Busy(ctx context.Context, n Name) (map[string]int, error) {
	busy := map[string]int{}
	return busy, s.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return workers(ctx, conn, n.encode(), func(w worker) {
			if w.operation != "" && w.id[PodKey] != "" {
				busy[w.id[PodKey]]++
			}
		})
	})
}

// workers calls use for each worker of a platform queue.
func workers(ctx context.Context, conn *grpc.ClientConn, platformQueue []byte, use func(worker)) error {
	var after map[string]string
	for range maxPages {
		answer, err := invoke(ctx, conn, "ListWorkers", listWorkers(platformQueue, after))
		if err != nil {
			return err
		}
		list, err := parseWorkers(answer)
		if err != nil {
			return err
		}
		for _, w := range list {
			use(w)
		}
		if len(list) < pageSize {
			return nil
		}
		after = list[len(list)-1].id
	}
	return fmt.Errorf("the queue has more than %d workers", maxPages*pageSize)
}

// Lost ends the actions of pods that do not exist any more, and returns how many there were. Their clients get the
// error that the scheduler gives them itself after a minute, and try again.
func (s Scheduler) Lost(ctx context.Context, pods []string) (actions int, err error) {
	// An open call of a lost worker could still be assigned an action.
	if err := s.Terminate(ctx, pods); err != nil {
		return 0, err
	}
	return actions, s.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := invoke(ctx, conn, "ListPlatformQueues", nil)
		if err != nil {
			return err
		}
		queues, err := parseQueues(answer)
		if err != nil {
			return err
		}
		doomed := map[string]string{} // the pods of operations
		for _, queue := range queues {
			err := workers(ctx, conn, queue, func(w worker) {
				if pod := w.id[PodKey]; w.operation != "" && slices.Contains(pods, pod) {
					doomed[w.operation] = pod
				}
			})
			if err != nil && status.Code(err) != codes.NotFound { // a queue without workers of size class 0
				return err
			}
		}
		for operation, pod := range doomed {
			_, err := invoke(ctx, conn, "KillOperations", killOperation(operation, codes.Unavailable,
				"The pod "+pod+" of the worker disappeared while the action was executing"))
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return err
			}
			actions++
		}
		return nil
	})
}

// Terminate makes the scheduler give the pods' workers no more actions. It does not wait for running actions.
func (s Scheduler) Terminate(ctx context.Context, pods []string) error {
	return s.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		var g errgroup.Group
		g.SetLimit(atOnce)
		for _, pod := range pods {
			g.Go(func() error { return terminate(ctx, conn, pod, cmp.Or(s.linger, linger)) })
		}
		return g.Wait()
	})
}

// terminate calls TerminateWorkers for one pod. The call lasts while a worker of the pod is busy, but it takes effect
// when it begins. So terminate gives up after linger without an error.
func terminate(ctx context.Context, conn *grpc.ClientConn, pod string, linger time.Duration) error {
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(calling, &grpc.StreamDesc{}, service+"TerminateWorkers")
	if err != nil {
		return err
	}
	request, answer := terminateWorkers(pod), []byte(nil)
	if err := errors.Join(stream.SendMsg(&request), stream.CloseSend()); err != nil {
		return err
	}
	over := time.AfterFunc(linger, cancel)
	defer over.Stop()
	if err := stream.RecvMsg(&answer); err != nil && (ctx.Err() != nil || status.Code(err) != codes.Canceled) {
		return err
	}
	return nil
}

func (s Scheduler) call(ctx context.Context, do func(context.Context, *grpc.ClientConn) error) error {
	transport := insecure.NewCredentials()
	if s.TLS != nil {
		transport = credentials.NewTLS(s.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+s.Address, grpc.WithTransportCredentials(transport),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(maxBytes)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.wait, wait))
	defer cancel()
	return do(ctx, conn)
}

func invoke(ctx context.Context, conn *grpc.ClientConn, method string, request []byte) ([]byte, error) {
	var answer []byte
	return answer, conn.Invoke(ctx, service+method, &request, &answer)
}

// bytesCodec passes encoded messages through. Its name is "proto", because the messages are protocol buffers.
type bytesCodec struct{}

// Marshal implements encoding.Codec.
func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal implements encoding.Codec.
func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Name implements encoding.Codec.
func (bytesCodec) Name() string { return "proto" }

package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/election"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

// unreachable is a client whose requests for the Lease fail while the channel is full.
type unreachable struct {
	client.Interface
	broken chan struct{}
}

func (f unreachable) err() error {
	if len(f.broken) > 0 {
		return errors.New("connection refused")
	}
	return nil
}

func (f unreachable) Get(ctx context.Context, key ctrl.ObjectKey, o ctrl.Object, opts ...ctrl.GetOption) error {
	if err := f.err(); err != nil {
		return err
	}
	return f.Interface.Get(ctx, key, o, opts...)
}

func (f unreachable) Update(ctx context.Context, o ctrl.Object, opts ...ctrl.UpdateOption) error {
	if err := f.err(); err != nil {
		return err
	}
	return f.Interface.Update(ctx, o, opts...)
}

// TestHealthFollowsTheLease checks that a process without an API server serves once its components are ready, not while
// the API server does not answer, and not once its term is over.
func TestHealthFollowsTheLease(t *testing.T) {
	e := registrytest.Start(t, registrytest.Options{NoPlugins: true})
	c := unreachable{e.As("admin"), make(chan struct{}, 1)}
	require.NoError(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}))
	s := newServing()
	elected, err := election.New(election.Config{
		Client: c, Lease: election.Scheduler, Identity: func() string { return "me" }, Log: slog.New(slog.DiscardHandler),
		Reached: func(answered bool) { s.set(&s.answered, answered) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	watch := statuses(t, s)
	done := make(chan error, 1)
	go func() {
		done <- servedElection{elected, s}.Run(ctx, (&servedTerm{serving: s}).Run, func() {})
	}()
	watch(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	watch(grpc_health_v1.HealthCheckResponse_SERVING)
	require.True(t, s.ready())
	c.broken <- struct{}{}
	watch(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	<-c.broken
	watch(grpc_health_v1.HealthCheckResponse_SERVING)

	cancel()
	require.NoError(t, <-done)
	watch(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	require.False(t, s.ready())
}

type healthStream struct {
	grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]
	ctx  context.Context
	seen chan grpc_health_v1.HealthCheckResponse_ServingStatus
}

func (h *healthStream) Context() context.Context { return h.ctx }
func (h *healthStream) Send(r *grpc_health_v1.HealthCheckResponse) error {
	h.seen <- r.Status
	return nil
}

// statuses returns a function that waits for a change to a status.
func statuses(t *testing.T, s *serving) func(grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	seen := make(chan grpc_health_v1.HealthCheckResponse_ServingStatus, 16)
	stream := &healthStream{ctx: t.Context(), seen: seen}
	go func() { _ = s.Watch(&grpc_health_v1.HealthCheckRequest{}, stream) }()
	return func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for got := range seen {
			if got == want {
				return
			}
		}
	}
}

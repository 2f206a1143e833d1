package agent

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/host/shutdown"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// logind is an in-memory logind with one client.
type logind struct {
	mu      sync.Mutex
	down    bool
	held    int
	changed chan struct{}
}

func newLogind() *logind { return &logind{changed: make(chan struct{}, 1)} }

func (l *logind) connect(context.Context) (shutdown.Logind, error) { return l, nil }
func (l *logind) Changed() <-chan struct{}                         { return l.changed }
func (l *logind) Lost() <-chan struct{}                            { return nil }
func (l *logind) Close()                                           {}

func (l *logind) State(context.Context) (shutdown.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return shutdown.State{Instance: "logind", ShuttingDown: l.down, Delay: time.Minute}, nil
}

func (l *logind) Inhibit(context.Context) (io.Closer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	return closer(l.release), nil
}

type closer func() error

func (c closer) Close() error { return c() }

func (l *logind) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held--
	return nil
}

func (l *logind) inhibitors() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

func (l *logind) set(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	l.changed <- struct{}{}
}

func (b *bench) readiness() corev1.NodeCondition {
	n := &corev1.Node{}
	require.NoError(b, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, n))
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// TestShutdownOfTheMachine checks the node and its pods during a shutdown, and after its cancellation.
func TestShutdownOfTheMachine(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.stop()
		b.logind = newLogind()
		b.periods = []config.ShutdownPeriod{
			{Priority: 0, Period: 20 * time.Second}, {Priority: 2_000_000_000, Period: 10 * time.Second},
		}
		b.start()
		b.settle()
		require.Equal(t, 1, b.logind.inhibitors())
		b.create(simple("web", "sleep", "1000000"))
		require.Equal(t, corev1.ConditionTrue, b.readiness().Status)

		b.logind.set(true)
		b.settle()
		ready := b.readiness()
		require.Equal(t, corev1.ConditionFalse, ready.Status)
		require.Equal(t, "KubeletNotReady", ready.Reason)
		require.Equal(t, "node is shutting down", ready.Message)
		require.Equal(t, "NodeShutdown", b.create(simple("late", "sleep", "1000000")).Status.Reason)
		b.pass(time.Minute)
		web := b.pod("web")
		require.Equal(t, corev1.PodFailed, web.Status.Phase)
		require.Equal(t, "Terminated", web.Status.Reason)
		require.Zero(t, b.logind.inhibitors(), "the machine may go down")
		require.Empty(t, b.network.sandboxes)
		require.Contains(t, b.events.list(), "NodeShutdown: The machine is shutting down, pods are terminated")

		b.logind.set(false)
		b.settle()
		require.Equal(t, corev1.ConditionTrue, b.readiness().Status)
		require.Equal(t, 1, b.logind.inhibitors())
		require.Equal(t, corev1.PodRunning, b.create(simple("next", "sleep", "1000000")).Status.Phase)

		b.stop()
		require.Zero(t, b.logind.inhibitors(), "an agent that ends delays nothing")
		b.start()
	})
}

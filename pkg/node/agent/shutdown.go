package agent

import (
	"context"
	"time"
)

// lookPatience limits how long pods wait until it is known whether the machine is shutting down.
const lookPatience = time.Second

// startShutdown follows shutdowns. It returns once it knows whether one is in progress, or after lookPatience.
func (a *Agent) startShutdown(ctx context.Context, spawn func(func() error)) {
	if a.shutdown == nil {
		return
	}
	spawn(func() error { a.guard.Loop(ctx, "shutdown", a.shutdown.Run); return nil })
	timer := time.NewTimer(lookPatience)
	defer timer.Stop()
	select {
	case <-a.shutdown.Looked():
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (a *Agent) shuttingDown() bool { return a.shutdown != nil && a.shutdown.ShuttingDown() }

// shutdownChanged is called when the machine begins to shut down, and when a shutdown is cancelled.
func (a *Agent) shutdownChanged(down bool) {
	a.wakeStatus()
	if down {
		return
	}
	if ended := a.pods.Resume(); a.static != nil {
		a.static.Restart(ended)
	}
}

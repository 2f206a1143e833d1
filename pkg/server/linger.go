package server

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a context that is done ShutdownDelay after ctx; meanwhile the server keeps serving and /readyz
// fails. If nothing serves yet it is done at once. The returned function ends it early, and so does a second signal to
// this process.
func (p *process) lingering(ctx context.Context, signals bool) (context.Context, context.CancelFunc) {
	if p.plane == nil || p.ShutdownDelay == 0 {
		return context.WithCancel(ctx)
	}
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer cancel()
		if signals {
			again := make(chan os.Signal, 1)
			signal.Notify(again, os.Interrupt, unix.SIGTERM)
			defer signal.Stop(again)
			ended := make(chan struct{})
			defer close(ended)
			go func() {
				select {
				case <-again:
					cancel()
				case <-ended:
				}
			}()
		}
		select {
		case <-p.started:
			p.linger(later)
		default:
		}
	})
	return later, func() { stop(); cancel() }
}

// linger makes /readyz fail, and returns after ShutdownDelay or when ctx is done.
func (p *process) linger(ctx context.Context) {
	p.plane.apiserver.Leave()
	p.log.Info("stopping: requests are still served, and /readyz fails", "for", p.ShutdownDelay)
	delay := time.NewTimer(p.ShutdownDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
	}
}

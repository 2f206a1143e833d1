package server

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a context that ends ShutdownDelay after ctx. In between, the server keeps serving and /readyz
// fails. It ends at once if the server does not serve yet, on the returned function, and, if signals is set, on
// another SIGINT or SIGTERM.
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

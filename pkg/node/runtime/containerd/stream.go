package containerd

import (
	"context"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

func (r *Runtime) Exec(ctx context.Context, id string, e runtime.Exec) (int, error) {
	return r.stream(ctx, id, shim.Request{Op: shim.Exec, ID: id, Args: e.Command, TTY: e.TTY}, e.Streams)
}

func (r *Runtime) Attach(ctx context.Context, id string, s runtime.Streams) error {
	_, err := r.stream(ctx, id, shim.Request{Op: shim.Attach, ID: id}, s)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *Runtime) stream(ctx context.Context, id string, req shim.Request, s runtime.Streams) (int, error) {
	client, err := r.runningShim(id)
	if err != nil {
		return 0, err
	}
	if req.TTY {
		s.Err = nil
	}
	var sizes chan shim.Size
	if s.Resize != nil {
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		sizes = make(chan shim.Size)
		go func() {
			for {
				select {
				case size, ok := <-s.Resize:
					if !ok {
						return
					}
					select {
					case sizes <- shim.Size(size):
					case <-own.Done():
						return
					}
				case <-own.Done():
					return
				}
			}
		}()
	}
	code, err := client.Stream(ctx, req, s.In, s.Out, s.Err, sizes)
	return code, r.explain(id, err)
}

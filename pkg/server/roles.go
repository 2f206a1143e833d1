package server

import (
	"context"
	"log/slog"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	keep "github.com/coracle-dev/coracle/pkg/control/controllers/roles"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// roles is the component that writes the default roles and bindings. It is ready at once, because the start of a
// cluster needs only system:masters and nodes, which work without them. written is closed once they are written.
type roles struct {
	run.Readiness
	client  client.Interface
	all     func() []ctrl.Object
	log     *slog.Logger
	written chan struct{}
}

func (r *roles) Name() string { return "roles" }
func (r *roles) Run(ctx context.Context) error {
	r.SetReady()
	return engine.Run(ctx, engine.Config{
		ClientFor: func(string) client.Interface { return r.client }, Log: r.log,
	}, []*engine.Reconciler{keep.New(r.all, sync.OnceFunc(func() { close(r.written) }))}, func() {})
}

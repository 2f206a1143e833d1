package run

import (
	"context"
	"sync"
	"time"
)

// Election decides when this process leads.
type Election interface {
	// Run takes part in the election until ctx is done. While this process leads, it calls lead with a context that is done when the
	// leadership ends, or ctx is; it calls lead again only after lead has returned. It calls settled once it is known whether this process
	// leads for the time being; further calls are allowed. Run returns lead's error, if that is not nil, at once.
	Run(ctx context.Context, lead func(ctx context.Context) error, settled func()) error
}

// How long the components of a Group may take to stop, all of them together. After the leadership was lost another process begins to act a
// moment later, so there is little time; when the process ends, the Group has less than a component of All.
const (
	stopLost = 2 * time.Second
	stopEnd  = stopEach - time.Second
)

// Group is a component that runs other components while this process leads. They are made, started in order and stopped in reverse order
// each time that leadership comes and goes. If one of them fails, so does the Group. If one does not stop in time, the Group fails with a
// *HungError, which ends the process: two processes must not act at once.
type Group struct {
	name     string
	election Election
	build    func() ([]Component, error)
	observe  Observer
	ready    chan struct{}
}

var _ Component = (*Group)(nil)

// NewGroup makes a Group; build makes its components whenever this process begins to lead.
func NewGroup(name string, e Election, observe Observer, build func() ([]Component, error)) *Group {
	return &Group{name: name, election: e, build: build, observe: observe, ready: make(chan struct{})}
}

// Name implements Component.
func (g *Group) Name() string { return g.name }

// Ready is closed once the components are ready, or another process leads.
func (g *Group) Ready() <-chan struct{} { return g.ready }

// Run implements Component.
func (g *Group) Run(ctx context.Context) error {
	open := sync.OnceFunc(func() { close(g.ready) })
	lead := func(term context.Context) error {
		components, err := g.build()
		if err != nil {
			return err
		}
		components = append(components, &mark{ready: make(chan struct{}), reached: open})
		return all(term, g.observe.without(markName), func() patience {
			if ctx.Err() != nil {
				return patience{stopEnd, stopEnd, 0}
			}
			return patience{stopLost, stopLost, 0}
		}, components)
	}
	return g.election.Run(ctx, lead, open)
}

// markName is the name of the last component of a Group.
const markName = "(all of a group)"

// mark is the last component: it is started when all others are ready.
type mark struct {
	ready   chan struct{}
	reached func()
}

func (m *mark) Name() string           { return markName }
func (m *mark) Ready() <-chan struct{} { return m.ready }
func (m *mark) Run(ctx context.Context) error {
	m.reached()
	close(m.ready)
	<-ctx.Done()
	return nil
}

// without is the Observer without the component of this name.
func (o Observer) without(name string) Observer {
	return Observer{
		Started: func(n string, took time.Duration) {
			if n != name && o.Started != nil {
				o.Started(n, took)
			}
		},
		Stopped: func(n string, err error) {
			if n != name && o.Stopped != nil {
				o.Stopped(n, err)
			}
		},
		Hung: func(n string, after time.Duration) {
			if n != name && o.Hung != nil {
				o.Hung(n, after)
			}
		},
	}
}

package run

import (
	"context"
	"time"
)

// Election decides when this process leads.
type Election interface {
	// Run takes part in the election until ctx is done. While this process leads, it calls lead with a context that
	// ends with the leadership or ctx, and does not call lead again before lead returns. It calls settled once it is
	// known whether this process leads; later calls have no effect. If lead returns an error, Run returns it at once.
	Run(ctx context.Context, lead func(ctx context.Context) error, settled func()) error
}

// The time that all components of a Group together have to stop. It is short after the leadership is lost, because
// another process takes over a moment later. When the process ends, a Group has less time than All gives one component.
const (
	stopLost = 2 * time.Second
	stopEnd  = stopEach - time.Second
)

// Group is a component that runs other components while this process leads. For each term it creates them, starts them
// in order, and stops them in reverse order. If one fails, the Group fails. If one does not stop in time, the Group
// fails with a *HungError, which ends the process: two processes must not act at the same time.
type Group struct {
	name     string
	election Election
	build    func() ([]Component, error)
	observe  Observer
	// Ready is closed once the components are ready, or once another process leads.
	Readiness
}

var _ Component = (*Group)(nil)

// NewGroup creates a Group. It calls build for the components of each term.
func NewGroup(name string, e Election, observe Observer, build func() ([]Component, error)) *Group {
	return &Group{name: name, election: e, build: build, observe: observe}
}

// Name implements Component.
func (g *Group) Name() string { return g.name }

// Run implements Component.
func (g *Group) Run(ctx context.Context) error {
	lead := func(term context.Context) error {
		components, err := g.build()
		if err != nil {
			return err
		}
		components = append(components, &mark{reached: g.SetReady})
		return all(term, g.observe.without(markName), func() patience {
			if ctx.Err() != nil {
				return patience{stopEnd, stopEnd, 0}
			}
			return patience{stopLost, stopLost, 0}
		}, components)
	}
	return g.election.Run(ctx, lead, g.SetReady)
}

const markName = "(all of a group)"

// mark is the last component of a Group. It starts once all others are ready.
type mark struct {
	Readiness
	reached func()
}

func (m *mark) Name() string { return markName }
func (m *mark) Run(ctx context.Context) error {
	m.reached()
	m.SetReady()
	<-ctx.Done()
	return nil
}

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

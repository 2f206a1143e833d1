package workers

import (
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/systems/workers/messages"
)

// node is the part of an agent in this process. While it runs, messages to its pods use no connection.
type node struct {
	*messages.Manager
	name string
	to   *messaging
}

// node returns the part for an agent.
func (m *messaging) node(h part.Host) part.Part {
	return &node{name: h.NodeName, to: m, Manager: messages.New(messages.Config{
		Enter: h.Enter, Former: filepath.Join(h.DataDir, "messages"), API: h.API, Token: h.Token, Event: h.Event,
		Logger: h.Logger,
	})}
}

// Start implements part.Part.
func (n *node) Start() error {
	if err := n.Manager.Start(); err != nil {
		return err
	}
	n.to.here.Store(n)
	return nil
}

// Stop implements part.Part.
func (n *node) Stop() {
	n.to.here.CompareAndSwap(n, nil)
	n.Manager.Stop()
}

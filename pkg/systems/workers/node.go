package workers

import (
	"net/http"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/memhttp"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/systems/workers/messages"
)

// node holds the queues of the pods of an agent in this process. While it runs, messages to its pods use no connection.
type node struct {
	*messages.Manager
	name string
	to   *messaging
	mux  http.ServeMux
}

// node returns the part for an agent.
func (m *messaging) node(h part.Host) part.Part {
	n := &node{name: h.NodeName, to: m, Manager: messages.New(messages.Config{
		Enter: h.Enter, Dir: messages.LogDir(h.DataDir), API: h.API, Token: h.Token, Changed: h.Changed, Event: h.Event,
		Logger: h.Logger, Metrics: h.Metrics,
	})}
	for _, r := range n.Routes() {
		n.mux.HandleFunc(r.Pattern, r.Handler)
	}
	return n
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

// RoundTrip implements http.RoundTripper. It serves this part's routes of the node's API.
func (n *node) RoundTrip(req *http.Request) (*http.Response, error) {
	return memhttp.Call(&n.mux, req, workers.MaxBatchOutcomes)
}

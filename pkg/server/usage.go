package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/coracle-dev/coracle/pkg/api/usage"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxResourceMetrics is the maximum size of a node's /metrics/resource, in bytes.
const maxResourceMetrics = 16 << 20

// newUsage returns the collector of the nodes' resource metrics. It asks this machine's node in process and others
// over their API.
func (p *process) newUsage(remote *nodes) *usage.Collector {
	return usage.New(func(ctx context.Context, name string) ([]byte, error) {
		if name == p.NodeName && p.node != nil {
			text := p.node.agent.ResourceMetrics(ctx)
			if text == nil {
				return nil, errors.New("the agent has not started yet")
			}
			return text, nil
		}
		return remote.resourceMetrics(ctx, name)
	}, component(p.log, "usage"))
}

func (n *nodes) resourceMetrics(ctx context.Context, name string) ([]byte, error) {
	base, transport, err := n.Connect(ctx, name)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("metrics", "resource").String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the node answered %s", res.Status)
	}
	return bounded.All(res.Body, maxResourceMetrics)
}

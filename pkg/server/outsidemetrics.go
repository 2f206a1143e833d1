package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// reader sends GET requests to the API server of a process without one: for the nodes' resource metrics, which it
// relays, and for adapters of custom and external metrics.
type reader struct {
	base   *url.URL
	client *http.Client
}

func newReader(c *rest.Config) (*reader, error) {
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(c)
	return &reader{base, client}, err
}

// get returns the answer to a request, at most maxResourceMetrics.
func (r *reader) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	u := r.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNotFound && !strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		return nil, aggregated.ErrNotServed // an API that is served answers with a Status
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the API server answered %s to GET %s", res.Status, path)
	}
	return bounded.All(res.Body, maxResourceMetrics)
}

// node returns the resource metrics of a node. The user needs the right to get nodes/proxy.
func (r *reader) node(ctx context.Context, name string) ([]byte, error) {
	return r.get(ctx, "api/v1/nodes/"+url.PathEscape(name)+"/proxy/metrics/resource", nil)
}

// Package webhook calls admission and conversion webhooks for the API server: it resolves their services and limits
// their responses. Its invariant: no response takes more memory than a small multiple of its limit.
package webhook

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/util/proxy"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// MaxResponse is the maximum size of an admission webhook's response, in bytes: a patch of the largest object in
	// base64, and some warnings.
	MaxResponse = 8 << 20
	// perValue is the number of bytes of a response's limit for each JSON value in it.
	perValue = 8
	// maxError is the number of bytes of an error that are read.
	maxError = 16 << 10
)

// Services resolves the services of webhooks to URLs. It implements webhook.ServiceResolver of k8s.io/apiserver.
type Services struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// NewServices creates a Services that reads the shared cache.
func NewServices(f informers.SharedInformerFactory) Services {
	return Services{f.Core().V1().Services().Lister(), f.Discovery().V1().EndpointSlices().Lister()}
}

// ResolveEndpoint returns the URL of a random ready endpoint. Webhooks in pods are called directly, because the API
// server's host may not route cluster IPs.
func (s Services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveEndpoint(s.services, s, namespace, name, port)
}

// GetEndpointSlices implements proxy.EndpointSliceGetter.
func (s Services) GetEndpointSlices(namespace, name string) ([]*discoveryv1.EndpointSlice, error) {
	return s.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name}))
}

// BoundResponses limits responses of webhooks to MaxResponse bytes. It is a webhook.AuthenticationInfoResolverWrapper.
func BoundResponses(r webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
	return boundedResolver{r}
}

type boundedResolver struct {
	webhookutil.AuthenticationInfoResolver
}

func (b boundedResolver) ClientConfigFor(host string) (*rest.Config, error) {
	return bound(b.AuthenticationInfoResolver.ClientConfigFor(host))
}

func (b boundedResolver) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return bound(b.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port))
}

func bound(c *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	return Bound(c, MaxResponse), nil
}

// Bound returns a copy of the configuration whose responses are limited to limit bytes and limit/8 JSON values.
func Bound(c *rest.Config, limit int64) *rest.Config {
	c = rest.CopyConfig(c)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedTransport{next, limit} })
	return c
}

type boundedTransport struct {
	http.RoundTripper
	limit int64
}

// WrappedRoundTripper lets client-go find the transport whose idle connections it closes.
func (t boundedTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := io.LimitReader(resp.Body, maxError)
	if resp.StatusCode < http.StatusMultipleChoices {
		body = &object{Reader: bounded.JSON(bounded.Reader(resp.Body, t.limit), t.limit, int(t.limit/perValue))}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{body, resp.Body}
	return resp, nil
}

// object reads a JSON object, and fails for anything else: whatever Content-Type says, clients of webhooks would decode
// it as YAML, which takes a hundred times the memory of its text, or as protobuf.
type object struct {
	io.Reader
	begun bool
}

func (o *object) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	if text := bytes.TrimSpace(p[:n]); !o.begun && len(text) > 0 {
		if o.begun = text[0] == '{'; !o.begun {
			return 0, errors.New("the webhook's response is no JSON object")
		}
	}
	return n, err
}

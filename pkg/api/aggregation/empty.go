package aggregation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// ErrUnavailable means that the server does not respond.
var ErrUnavailable = errors.New("the aggregated API server does not answer")

// pageSize is the number of remaining objects that are read. The server counts the others.
const pageSize = 500

// Empty deletes the objects of a resource in a namespace, as a given user. It returns the metadata of at most 500 of
// the remaining objects and the number of all. A resource without the verbs list and delete counts as empty. If the
// server does not respond, the error is ErrUnavailable.
func (b *Backend) Empty(ctx context.Context, r metav1.APIResource, namespace string,
	as user.Info) ([]metav1.PartialObjectMetadata, int, error) {
	if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
		return nil, 0, nil
	}
	path := "/apis/" + b.cfg.GroupVersion.String() + "/namespaces/" + namespace + "/" + r.Name
	list, err := b.listIn(ctx, path, as)
	if err != nil || len(list.Items) == 0 {
		return nil, 0, ignoreGone(err)
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"}, PropagationPolicy: &background,
	}
	var failed error
	if slices.Contains(r.Verbs, "deletecollection") {
		failed = ignoreGone(b.do(ctx, http.MethodDelete, path, "", options, as, nil))
	} else {
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp == nil {
				failed = errors.Join(failed,
					ignoreGone(b.do(ctx, http.MethodDelete, path+"/"+url.PathEscape(list.Items[i].Name), "", options, as, nil)))
			}
		}
	}
	if list, err = b.listIn(ctx, path, as); err != nil {
		return nil, 0, ignoreGone(err)
	}
	count := len(list.Items)
	if list.RemainingItemCount != nil {
		count += int(max(*list.RemainingItemCount, 0))
	}
	return list.Items, count, failed
}

// ignoreGone ignores errors for a resource or object that does not exist.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	return err
}

func (b *Backend) listIn(ctx context.Context, path string, as user.Info) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	err := b.do(ctx, http.MethodGet, path, fmt.Sprintf("limit=%d", pageSize), nil, as, list)
	return list, err
}

// Get reads a document of at most 4 MiB as a given user. An error response is returned as its Status.
func (b *Backend) Get(ctx context.Context, path string, query url.Values, as user.Info) ([]byte, error) {
	var data json.RawMessage
	if err := b.do(ctx, http.MethodGet, path, query.Encode(), nil, as, &data); err != nil {
		return nil, err
	}
	return data, payload.Check(data, nil)
}

// do sends a request as a given user, and decodes the response unless into is nil. An error response is returned as
// its Status.
func (b *Backend) do(ctx context.Context, method, path, query string, body any, as user.Info, into any) error {
	base, err := b.cfg.Resolve()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	u := url.URL{Scheme: "https", Host: base.Host, Path: path, RawQuery: query}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	req.Header.Set("Content-Type", "application/json")
	transport.SetAuthProxyHeaders(req, as.GetName(), as.GetUID(), as.GetGroups(), as.GetExtra())
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer resp.Body.Close()
	data, err := bounded.All(resp.Body, maxDiscovery)
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusBadGateway ||
		resp.StatusCode == http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %s", ErrUnavailable, resp.Status)
	case err != nil:
		return err
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		var status metav1.Status
		if decode(data, &status) != nil || status.Status == "" {
			status = metav1.Status{Message: resp.Status}
		}
		status.Status, status.Code = metav1.StatusFailure, int32(resp.StatusCode)
		if status.Reason == "" && resp.StatusCode == http.StatusNotFound {
			status.Reason = metav1.StatusReasonNotFound
		}
		return &apierrors.StatusError{ErrStatus: status}
	case into == nil:
		return nil
	}
	if err := decode(data, into); err != nil {
		return fmt.Errorf("response from %v: %w", &u, err)
	}
	return nil
}

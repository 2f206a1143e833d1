package workers

import (
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// sealed is a connection to a service through a server with a receipt key.
type sealed struct {
	kind.Connection
	key, namespace, service string
	got                     *http.Request
}

func (c *sealed) Target() (*kind.Resource, string, string) { return nil, c.namespace, c.service }

func (c *sealed) Seal(data []byte) []byte {
	sum := sha256.Sum256(append([]byte(c.key), data...))
	return sum[:]
}

func (c *sealed) LocalNode(string) localNode { return c }

func (*sealed) Accept([]*workers.Delivery) {}

func (c *sealed) RoundTrip(req *http.Request) (*http.Response, error) {
	c.got = req
	return &http.Response{StatusCode: http.StatusAccepted, Body: io.NopCloser(strings.NewReader(""))}, nil
}

// TestNodesSendOnWhatTheyWereGiven checks that a node can neither forge a message nor send one to a service other than
// its worker's.
func TestNodesSendOnWhatTheyWereGiven(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: map[string]string{
		workers.AnnotationQueue: (&workers.Queue{Worker: "w", DeadLetter: "dead"}).Annotation()}}}
	send := func(on *sealed, who user.Info, query, receipt, contentType, payload string) error {
		req := httptest.NewRequest(http.MethodPost, "/"+query, strings.NewReader(payload))
		req = req.WithContext(request.WithUser(req.Context(), who))
		req.Header.Set("Content-Type", contentType)
		req.Header.Set(workers.HeaderReceipt, receipt)
		return sender{
			messaging:  &messaging{local: on.LocalNode, host: system.Host{Seal: on.Seal}},
			on:         on,
			candidates: func() []*corev1.Pod { return []*corev1.Pod{pod} },
		}.send(httptest.NewRecorder(), req)
	}
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}}
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}}
	first := &sealed{key: "k", namespace: "ns", service: "w"}
	require.NoError(t, send(first, ann, "", "forged", "text/plain", "hello"))
	receipt := first.got.Header.Get(workers.HeaderReceipt)
	require.True(t, strings.HasPrefix(receipt, "w,dead,"), receipt)
	_, code, _ := strings.Cut(receipt, "dead,")

	for _, c := range []struct {
		name, key, namespace, service, query, receipt, contentType, payload string
		allowed                                                             bool
	}{
		{"to the worker", "k", "ns", "w", "", receipt, "text/plain", "hello", true},
		{"to its dead-letter worker", "k", "ns", "dead", "", receipt, "text/plain", "hello", true},
		{"without a receipt", "k", "ns", "w", "", "", "text/plain", "hello", false},
		{"another message", "k", "ns", "w", "", receipt, "text/plain", "hello!", false},
		{"another media type", "k", "ns", "w", "", receipt, "text/html", "hello", false},
		{"another service", "k", "ns", "other", "", receipt, "text/plain", "hello", false},
		{"another service in the receipt", "k", "ns", "other", "", "w,other," + code, "text/plain", "hello", false},
		{"another namespace", "k", "kube-system", "w", "", receipt, "text/plain", "hello", false},
		{"of another cluster", "other", "ns", "w", "", receipt, "text/plain", "hello", false},
		{"malformed", "k", "ns", "w", "", "w,dead,%", "text/plain", "hello", false},
		{"a batch", "k", "ns", "w", "?batch", receipt, "text/plain", "hello", false},
	} {
		err := send(&sealed{key: c.key, namespace: c.namespace, service: c.service}, node, c.query, c.receipt, c.contentType,
			c.payload)
		require.Equal(t, c.allowed, err == nil, c.name)
		require.Equal(t, !c.allowed, apierrors.IsForbidden(err), c.name)
	}
}

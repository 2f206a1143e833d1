package aggregation

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/api/payload"
)

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// An aggregated API server must not take this server's memory: with empty objects, of which each takes 272 bytes, in
// JSON or in protobuf, or with a watch event that never ends.
func TestAnswersThatTakeMemoryAreRefused(t *testing.T) {
	const limit = 128 << 20
	media, sent := "application/json", int64(0)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", media)
		switch {
		case r.URL.Query().Get("watch") != "":
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"a":"`)
			for chunk := bytes.Repeat([]byte("x"), 1<<20); sent < limit; sent += int64(len(chunk)) {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		case media == runtime.ContentTypeProtobuf:
			raw, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{
				APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList",
			}, Raw: bytes.Repeat([]byte{0x12, 0}, 1<<16)}).Marshal()
			if err == nil {
				_, _ = w.Write(append([]byte("k8s\x00"), raw...))
			}
		default:
			_, _ = io.WriteString(w, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","items":[`+
				strings.Repeat("{},", 1_300_000)+"{}]}")
		}
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	b, err := New(Config{
		GroupVersion: schema.GroupVersion{Group: "g", Version: "v1"}, Insecure: true,
		Resolve:     func() (*url.URL, error) { return at, nil },
		Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil },
	})
	require.NoError(t, err)
	defer b.Close()
	who := &user.DefaultInfo{Name: "collector"}
	api, err := metadata.NewForConfig(&rest.Config{
		Host:      "https://aggregated.invalid",
		Transport: trip(func(req *http.Request) (*http.Response, error) { return b.RoundTrip(req, who) }),
	})
	require.NoError(t, err)
	all := api.Resource(schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "things"})

	_, err = all.List(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "more than 2000000 values")
	_, _, err = b.Empty(t.Context(), metav1.APIResource{Name: "things", Verbs: []string{"list", "delete"}}, "n", who)
	var shape *payload.ShapeError
	require.ErrorAs(t, err, &shape)
	media = runtime.ContentTypeProtobuf
	_, err = all.List(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "the answer is not JSON")

	media = "application/json"
	w, err := all.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	<-w.ResultChan()
	w.Stop()
	server.CloseClientConnections()
	server.Close()
	require.Less(t, sent, int64(limit), "the rest of the event was not read")
}

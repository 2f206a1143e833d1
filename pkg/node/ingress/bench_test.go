package ingress

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRequest compares direct requests to a backend with requests through the ingress, which acts as an
// additional server and client.
func BenchmarkRequest(b *testing.B) {
	text := strings.Repeat("x", 1<<10)
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text)
	}))
	defer back.Close()
	f := serve(b, back.URL)
	for name, address := range map[string]string{"direct": back.Listener.Addr().String(), "ingress": f.http} {
		b.Run(name, func(b *testing.B) {
			transport := &http.Transport{MaxIdleConnsPerHost: 64}
			defer transport.CloseIdleConnections()
			b.SetParallelism(16)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r, err := (&http.Client{Transport: transport}).Get("http://" + address + "/")
					require.NoError(b, err)
					_, err = io.Copy(io.Discard, r.Body)
					require.NoError(b, err)
					_ = r.Body.Close()
				}
			})
		})
	}
}

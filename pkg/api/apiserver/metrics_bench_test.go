package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// BenchmarkObserve measures the cost of metrics per request.
func BenchmarkObserve(b *testing.B) {
	w := newWorld(b)
	req := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/d/pods/p", nil)
	info := &request.RequestInfo{
		IsResourceRequest: true,
		Path:              req.URL.Path,
		Verb:              "get",
		APIVersion:        "v1",
		Namespace:         "d",
		Resource:          "pods",
		Name:              "p",
	}
	began := time.Now()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w.srv.metrics.observe(req, info, http.StatusOK, began)
		}
	})
}

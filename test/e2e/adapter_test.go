package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestMetricsOfAnAdapter checks an aggregated metrics server: an autoscaler uses its external and object metrics, and
// deleting a namespace deletes the namespace's objects there. When that server is dead, the namespace is still deleted.
func TestMetricsOfAnAdapter(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	l, err := h.Listen("tcp", "198.51.100.2:0")
	require.NoError(t, err)
	var queue, deleted atomic.Int64
	queue.Store(1)
	list := func(resources string) string {
		return `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"x/v1","resources":[` + resources + `]}`
	}
	server := &httptest.Server{
		Listener: l,
		Config: &http.Server{
			ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				path := req.URL.Path
				switch {
				case path == "/apis/external.metrics.k8s.io/v1beta1" || path == "/apis/custom.metrics.k8s.io/v1beta2":
					fmt.Fprint(w, list(""))
				case path == "/apis/things.example.com/v1":
					fmt.Fprint(w,
						list(`{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list","delete","deletecollection"]}`))
				case path == "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue" &&
					req.Header.Get("X-Remote-User") == "system:serviceaccount:kube-system:horizontal-pod-autoscaler":
					fmt.Fprintf(w, `{"items":[{"metricName":"queue","value":"%d","timestamp":"2026-01-01T00:00:00Z"}]}`, queue.Load())
				case strings.HasSuffix(path, "/things") && req.Method == http.MethodDelete:
					deleted.Add(1)
					fmt.Fprint(w, `{"items":[]}`)
				case strings.HasSuffix(path, "/namespaces/doomed/things") && deleted.Load() == 0:
					fmt.Fprint(w, `{"items":[{"metadata":{"name":"one"}}]}`)
				case strings.HasSuffix(path, "/things"):
					fmt.Fprint(w, `{"items":[]}`)
				default:
					http.NotFound(w, req)
				}
			}),
		}, TLS: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	port := l.Addr().String()[strings.LastIndex(l.Addr().String(), ":")+1:]
	manifest := `
apiVersion: v1
kind: Service
metadata: {name: adapter}
spec: {ports: [{name: https, port: 443, targetPort: ` + port + `}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: adapter, labels: {kubernetes.io/service-name: adapter}}
addressType: IPv4
ports: [{name: https, port: ` + port + `}]
endpoints: [{addresses: [198.51.100.2], conditions: {ready: true}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {nodeSelector: {no: where}, containers: [{name: a, image: none}]}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 10
  metrics: [{type: External, external: {metric: {name: queue}, target: {type: AverageValue, averageValue: "2"}}}]
`
	for _, gv := range []string{
		"v1beta1.external.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1.things.example.com",
	} {
		version, group, _ := strings.Cut(gv, ".")
		manifest += fmt.Sprintf(`
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %s}
spec: {group: %s, version: %s, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: default, name: adapter}}
`, gv, group, version)
	}
	queue.Store(9)
	h.Apply(manifest)
	for _, gv := range []string{"v1beta1.external.metrics.k8s.io", "v1.things.example.com"} {
		h.Ctl("wait apiservice/" + gv + " --for=condition=Available --timeout=120s")
	}
	h.Ctl("wait deployment/web --for=jsonpath={.spec.replicas}=5 --timeout=120s")
	h.Shows("successfully calculate a replica count from external metric queue",
		"get hpa web -o jsonpath={.status.conditions}")

	h.Ctl("create namespace doomed")
	h.Ctl("delete namespace doomed --timeout=120s")
	require.Equal(t, int64(1), deleted.Load())
	h.Ctl("create namespace doomed")
	server.CloseClientConnections()
	require.NoError(t, l.Close())
	h.Ctl("delete namespace doomed --timeout=120s")
}

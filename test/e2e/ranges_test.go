package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const furtherRange = `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: further}
spec: {cidrs: [10.99.0.0/28]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: a, image: "busybox:1.36", command: [sh, -c, "mkdir /w; echo hello > /w/index.html; httpd -f -p 8080 -h /w"]}]
`

const rangedService = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.99.0.5, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestFurtherRange checks that services get addresses of a ServiceCIDR, which pods and processes of the node reach,
// and that the ServiceCIDR stays as long as such services exist.
func TestFurtherRange(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(furtherRange)
	h.Ctl("wait servicecidr/further --for=condition=Ready --timeout=60s")
	h.Apply(rangedService)
	h.Ctl("wait pod/web --for=condition=Ready --timeout=120s")
	h.Ctl("wait endpointslice -l kubernetes.io/service-name=web --for=jsonpath={.endpoints[0].conditions.ready}=true " +
		"--timeout=60s")
	require.Equal(t, "hello\n", h.Ctl("exec web -- wget -q -O - http://10.99.0.5"))
	page, err := h.Curl("http://10.99.0.5")
	require.NoError(t, err)
	require.Equal(t, "hello\n", page)

	h.Ctl("delete servicecidr further --wait=false")
	h.Ctl("wait servicecidr/further --for=condition=Ready=false --timeout=60s")
	require.Equal(t, "Terminating", h.Ctl("get servicecidr further -o jsonpath={.status.conditions[0].reason}"))
	require.Equal(t, "hello\n", h.Ctl("exec web -- wget -q -O - http://10.99.0.5"))
	h.Ctl("delete service web")
	h.Ctl("wait servicecidr/further --for=delete --timeout=60s")
}

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const loaded = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: httpd
        image: busybox:1.36
        command: [sh, -c, "mkdir -p /www/cgi-bin; printf '#!/bin/sh\necho; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ok\n' > /www/cgi-bin/work; chmod +x /www/cgi-bin/work; exec httpd -f -p 8080 -h /www"]
        ports: [{containerPort: 8080}]
        resources: {requests: {cpu: 50m, memory: 16Mi}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 3
  metrics:
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}
---
apiVersion: v1
kind: Pod
metadata: {name: load}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: a, image: "busybox:1.36", command: [sh, -c, "while true; do wget -q -O /dev/null http://web/cgi-bin/work; done"]}]
`

// TestAWebServiceScalesWithItsLoad: usage is read from real containers, without an add-on, and a service under load gets more pods.
func TestAWebServiceScalesWithItsLoad(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(loaded)
	h.Ctl("rollout status deployment/web --timeout=60s")
	h.Ctl("wait pod/load --for=condition=Ready --timeout=60s")
	top := h.Ctl("top pod --containers")
	require.Contains(t, top, "httpd")
	require.Regexp(t, `load +a +\d+m +\d+Mi`, top)
	require.Regexp(t, h.Name+` +\d+m +\d+% +\d+Mi +\d+%`, h.Ctl("top node"))
	h.Ctl("wait deployment/web --for=jsonpath={.status.availableReplicas}=3 --timeout=120s")
	require.Contains(t, h.Ctl("describe hpa web"), "SuccessfulRescale")
	require.Contains(t, h.Ctl("get horizontalpodautoscalers.v1.autoscaling web -o jsonpath={.spec.targetCPUUtilizationPercentage}"), "50")
	h.Ctl("wait hpa/web --for=condition=ScalingActive --timeout=60s")
}

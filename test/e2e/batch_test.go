package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// pipeline is a batch pipeline: each index of the first job writes its share into a directory of the machine, and
// one pod of the second job adds the shares up.
const pipeline = `
apiVersion: batch/v1
kind: Job
metadata: {name: map}
spec:
  completions: 8
  parallelism: 3
  completionMode: Indexed
  backoffLimitPerIndex: 1
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: busybox:1.36
        command: [sh, -c, "sleep 0.3; echo $((JOB_COMPLETION_INDEX * 10)) | tee /share/$(hostname)"]
        volumeMounts: [{name: share, mountPath: /share}]
      volumes: [{name: share, hostPath: {path: %[1]s, type: DirectoryOrCreate}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: reduce}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: busybox:1.36
        command: [sh, -c, "cat /share/map-* | awk '{s += $1} END {print NR, s}'"]
        volumeMounts: [{name: share, mountPath: /share}]
      volumes: [{name: share, hostPath: {path: %[1]s, type: DirectoryOrCreate}}]
`

// TestBatch runs jobs to their end on real containers while the server is killed. Each pod must count once.
func TestBatch(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Ctl("create job hello --image=busybox:1.36 -- echo hello")
	h.Ctl("wait --for=condition=complete job/hello --timeout=120s")
	require.Equal(t, "hello\n", h.Ctl("logs job/hello"))
	require.Contains(t, h.Ctl("describe job hello"), "1 Succeeded / 0 Failed")
	require.Contains(t, h.Ctl("get job hello"), "Complete")

	h.Apply(fmt.Sprintf(pipeline, t.TempDir()))
	h.Ctl("wait --for=jsonpath={.status.succeeded} job/map --timeout=120s") // any number
	h.Kill()
	h.Run("start")
	h.Ctl("wait --for=condition=complete job/map --timeout=120s")
	require.Equal(t, "8,,0-7",
		h.Ctl("get job map -o jsonpath={.status.succeeded},{.status.failed},{.status.completedIndexes}"))
	require.Len(t, strings.Fields(h.Ctl("get pods -l job-name=map -o name")), 8, "no index ran twice")
	require.Empty(t, h.Ctl("get pods -l job-name=map -o jsonpath={.items[*].metadata.finalizers}"))

	require.Empty(t, h.Ctl("get pods -l job-name=reduce -o name"))
	h.Ctl(`patch job reduce --type=merge -p {"spec":{"suspend":false}}`)
	h.Ctl("wait --for=condition=complete job/reduce --timeout=120s")
	require.Equal(t, "8 280\n", h.Ctl("logs job/reduce"))

	h.Ctl("create cronjob tick --image=busybox:1.36 --schedule=@daily -- true")
	h.Ctl("create job now --from=cronjob/tick")
	h.Ctl("wait --for=condition=complete job/now --timeout=120s")
	h.Ctl("delete cronjob tick")
	h.Ctl("delete job map reduce hello --wait")
	h.Ctl("wait pod -l job-name --for=delete --timeout=120s")
}

package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command/commandtest"
)

// inspected runs `kubectl inspect` with args against a server that responds to path with code and body.
func inspected(t *testing.T, path string, code int, body string, args ...string) (string, error) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	flags := genericclioptions.NewConfigFlags(false)
	none, cache := filepath.Join(t.TempDir(), "none"), t.TempDir()
	require.NoError(t, os.WriteFile(none, nil, 0o600))
	flags.APIServer, flags.KubeConfig, flags.CacheDir = &server.URL, &none, &cache
	var out strings.Builder
	cmd := inspectCommand(flags, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: io.Discard})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestInspectStore(t *testing.T) {
	const path, body = "/debug/coracle/store",
		`{"revision": 9, "compactedRevision": 4, "sizeBytes": 2097152, "usedBytes": 1048576, "quotaBytes": 8589934592, "diskFreeBytes": 10737418240, "diskMinFreeBytes": 1073741824, "members": 1}`
	out, err := inspected(t, path, http.StatusOK, body, "store")
	require.NoError(t, err)
	require.Equal(t, `In use     1.0 MiB of a quota of 8.0 GiB
Database   2.0 MiB
Disk       10.0 GiB free, at least 1.0 GiB needed
Revision   9, history since 4
Members    1
`, out)
	out, err = inspected(t, path, http.StatusOK, body, "store", "-o", "json")
	require.NoError(t, err)
	require.Equal(t, body, out, "as the server sent it")

	_, err = inspected(t, path, http.StatusOK, body, "store", "-o", "yaml")
	require.EqualError(t, err, `output "yaml" is not known: leave it out, or use json`)
	_, err = inspected(t, path, http.StatusOK, body, "memory")
	require.EqualError(t, err,
		`there is no "memory" to inspect; there are cache, reconcilers, fairness, store and schedule`)
	_, err = inspected(t, path, http.StatusOK, "<html>", "store")
	require.ErrorContains(t, err, "could not decode the server's response")
	_, err = inspected(t, path, http.StatusForbidden,
		`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "user jane cannot get path"}`, "store")
	require.EqualError(t, err, "user jane cannot get path", "the server's own words")
}

func TestInspectTables(t *testing.T) {
	require.Equal(t, `KIND              OBJECTS  BYTES    ENCODED  REVISION  WATCHERS  RING  CHANGES  EXPIRED
pods              2        4.0 KiB  0 B      7         3         5/64  11       3
deployments.apps  1        1.0 KiB  512 B    6         0         0/0   1        0

3 objects of 2 kinds, 5.0 KiB as stored and 512 B of encodings, at revision 9.
`, commandtest.Output(t, func(out io.Writer) error {
		return printCache(socket.CacheReport{Revision: 9, Kinds: []socket.CacheKind{
			{
				Resource: "pods", Objects: 2, ObjectBytes: 4096, Revision: 7, Watchers: 3, Ring: 5, RingLimit: 64, Changes: 11,
				Expired: 1, Refused: 2,
			},
			{Group: "apps", Resource: "deployments", Objects: 1, ObjectBytes: 1024, EncodingBytes: 512, Revision: 6, Changes: 1},
		}}, out)
	}))

	var watches []string
	for i := range 14 {
		watches = append(watches, fmt.Sprintf("k%d", i))
	}
	require.Equal(t, `RECONCILER  SYNCED  QUEUED  DELAYED  RUNNING  BACK-OFF  CRASHES
deployment  no      4       1        2/8      3         1

deployment
  watches   k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11 and 2 more (-o json)
  writes    ReplicaSet: create
            Deployment: status
  failing   ns/a for 2m, 5 attempts: quota
  failing   2 more
  crashed   nil map
`, commandtest.Output(t, func(out io.Writer) error {
		return printReconcilers(socket.ReconcilersReport{Reconcilers: []socket.Reconciler{{
			Name: "deployment", Watches: watches, Writes: []string{"ReplicaSet: create", "Deployment: status"}, Queued: 4,
			Delayed: 1, Running: 2, Workers: 8,
			BackingOff: 3,
			Failures:   []socket.Failure{{Object: "ns/a", Since: time.Now().Add(-2 * time.Minute), Attempts: 5, Error: "quota"}},
			Crashes:    1, LastCrash: "nil map\ngoroutine 1",
		}}}, out)
	}))

	report := socket.FairnessReport{
		Levels: []socket.FairnessLevel{
			{Name: "exempt", Exempt: true}, {Name: "workload-low", Seats: 20, Executing: 2, Waiting: 1, Dispatched: 30},
		},
	}
	text := commandtest.Output(t, func(out io.Writer) error { return printFairness(report, out) })
	require.Contains(t, text, "No flow has requests now.")
	report.Levels[1].Flows = []socket.FairnessFlow{{Schema: "service-accounts", Flow: "ns", Executing: 2, BodyBytes: 2048}}
	require.Equal(t, `PRIORITY LEVEL  SEATS   EXECUTING  WAITING  DISPATCHED  REJECTED  FLOWS
exempt          exempt  -          -        -           -         -
workload-low    20      2          1        30          0         0

FLOW SCHEMA       FLOW  PRIORITY LEVEL  EXECUTING  WAITING  STREAMS  BODIES
service-accounts  ns    workload-low    2          0        0        2.0 KiB
`, commandtest.Output(t, func(out io.Writer) error { return printFairness(report, out) }))
}

package auditlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: sink, cluster: {server: "http://%s/audit"}}]
contexts: [{name: sink, context: {cluster: sink}}]
current-context: sink
`

// receiver is a server that receives batches. It responds with the queued codes, then with 200.
type receiver struct {
	batches chan []string
	codes   chan int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	raw, err := bounded.All(req.Body, 64<<20)
	var list auditv1.EventList
	if err := errors.Join(err, json.Unmarshal(raw, &list)); err != nil || list.APIVersion != "audit.k8s.io/v1" ||
		list.Kind != "EventList" || req.URL.Path != "/audit" {
		panic(fmt.Sprintf("%v: %s %.200s", err, req.URL, raw))
	}
	var ids []string
	for _, e := range list.Items {
		ids = append(ids, string(e.AuditID))
	}
	select {
	case code := <-r.codes:
		r.batches <- append(ids, fmt.Sprint(code))
		http.Error(w, "no", code)
	default:
		r.batches <- ids
	}
}

// serve starts a receiver and returns the configuration of a log that sends to it.
func serve(t *testing.T) (*receiver, Config) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &receiver{make(chan []string, 100), make(chan int, 100)}
	s := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, s.Close()); <-ended })
	file := filepath.Join(t.TempDir(), "sink.kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, kubeconfig, l.Addr()), 0o600))
	return r, Config{PolicyFile: policyFile(t, all), Logger: quiet(),
		Webhook: Webhook{
			Kubeconfig:     file,
			InitialBackoff: time.Millisecond,
			BufferSize:     4,
			MaxBatch:       2,
			MaxWait:        time.Millisecond,
		}}
}

func TestEventsAreSentInBatches(t *testing.T) {
	r, cfg := serve(t)
	cfg.Webhook.MaxWait = time.Hour
	cfg.Path = filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(cfg)
	require.NoError(t, err)
	l.ProcessEvents(event("1"), event("2"), event("3"))
	stop := run(t, l)
	require.Equal(t, []string{"1", "2"}, <-r.batches, "a full batch does not wait")
	stop()
	require.Equal(t, []string{"3"}, <-r.batches, "the end does not wait either")
	require.Zero(t, l.Dropped("webhook"))
	require.EqualValues(t, 3, l.Events())
	text, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(text), "\n"), "the file has them too")
}

func TestBatchesAreSentAgain(t *testing.T) {
	r, cfg := serve(t)
	l, err := Open(cfg)
	require.NoError(t, err)
	for range 3 {
		r.codes <- 503
	}
	r.codes <- 403
	stop := run(t, l)
	l.ProcessEvents(event("1"))
	for range 3 {
		require.Equal(t, []string{"1", "503"}, <-r.batches)
	}
	require.Equal(t, []string{"1", "403"}, <-r.batches, "whatever the error, as upstream")
	require.Equal(t, []string{"1"}, <-r.batches)
	require.Zero(t, l.Dropped("webhook"))
	for range attempts {
		r.codes <- 500
	}
	l.ProcessEvents(event("2"))
	for range attempts {
		require.Equal(t, []string{"2", "500"}, <-r.batches)
	}
	l.ProcessEvents(event("3"))
	require.Equal(t, []string{"3"}, <-r.batches)
	require.EqualValues(t, 1, l.Dropped("webhook"), "given up after the last attempt")
	stop()
	require.Zero(t, l.sinks[0].(*hook).bytes.Load())
}

// An unreachable webhook delays neither requests nor the shutdown, and the waiting events are limited.
func TestAWebhookThatIsAway(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sink.kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, kubeconfig, "127.0.0.1:1"), 0o600))
	l, err := Open(Config{
		PolicyFile: policyFile(t, all),
		Logger:     quiet(),
		Webhook:    Webhook{Kubeconfig: file, InitialBackoff: time.Hour, BufferSize: 4, MaxBatch: 2, MaxWait: time.Hour},
	})
	require.NoError(t, err)
	for range 10 {
		require.True(t, l.ProcessEvents(event("some")))
	}
	require.EqualValues(t, 6, l.Dropped("webhook"))
	stop := run(t, l)
	require.Eventually(t, func() bool {
		return len(l.sinks[0].(*hook).waiting) == 2
	}, time.Minute, time.Millisecond, "a batch is being sent")
	stop()
	require.EqualValues(t, 10, l.Dropped("webhook"))
}

func TestOpenRefusesAWebhook(t *testing.T) {
	_, err := Open(Config{
		PolicyFile: policyFile(t, all),
		Logger:     quiet(),
		Webhook:    Webhook{Kubeconfig: "/nowhere/kubeconfig"},
	})
	require.ErrorContains(t, err, "audit-webhook-config-file")
}

func TestLegacyFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(Config{PolicyFile: policyFile(t, all), Path: path, Format: Legacy, Logger: quiet()})
	require.NoError(t, err)
	stop := run(t, l)
	l.ProcessEvents(event("one"), event("two"))
	stop()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], `AUDIT: id="one" stage="ResponseComplete"`)
}

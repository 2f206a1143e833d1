package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

// elsewhere is an API server over a separate etcd, both from Coracle or both from upstream.
type elsewhere struct {
	t       *testing.T
	h       *host.Host
	etcd    *upstream.Cluster
	config  upstream.Config
	running *upstream.Cluster
	http    *http.Client
}

// newElsewhere starts etcd and the API server from the programs in a folder.
func newElsewhere(t *testing.T, programs string) *elsewhere {
	h := host.New(t)
	dir := t.TempDir()
	c := upstream.Config{
		Programs:    programs,
		Dir:         dir,
		Address:     h.Address,
		Command:     h.Command,
		Dial:        h.Dial,
		NoAPIServer: true,
	}
	etcd, err := upstream.Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Stop()) })
	c.NoAPIServer, c.EtcdURL = false, etcd.EtcdURL
	c.Bare = true
	e := &elsewhere{t: t, h: h, etcd: etcd, config: c, http: &http.Client{Transport: &http.Transport{DialContext: h.Dial}}}
	t.Cleanup(e.http.CloseIdleConnections)
	e.start()
	t.Cleanup(func() { require.NoError(t, e.running.Stop()) })
	return e
}

func (e *elsewhere) start() {
	running, err := upstream.Start(e.t.Context(), e.config)
	require.NoError(e.t, err)
	e.running = running
}

func (e *elsewhere) rest() *rest.Config { return e.running.REST() }

func (e *elsewhere) kill() {
	e.running.Kill()
	e.start()
}

// compact compacts etcd up to a revision, as an operator may at any time.
func (e *elsewhere) compact(ctx context.Context, rev int64) {
	e.t.Helper()
	body, err := json.Marshal(map[string]any{"revision": fmt.Sprint(rev)})
	require.NoError(e.t, err)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.etcd.EtcdURL+"/v3/kv/compaction",
		bytes.NewReader(body))
	require.NoError(e.t, err)
	answer, err := e.http.Do(request)
	require.NoError(e.t, err)
	defer answer.Body.Close()
	require.Equal(e.t, http.StatusOK, answer.StatusCode)
}

// run lets a crowd work, and compares its observations with etcd's events.
func (e *elsewhere) run() {
	c := newCrowd(e.t, e.rest)
	ctx, stop := context.WithCancel(e.t.Context())
	ended := e.truth(ctx, c)
	defer func() { stop(); <-ended }()
	c.run(e.disturb(c))
}

// disturb alternates compactions, up to a few revisions ago, with kills. It does not compact the history that a
// killed server needs: returning clients must get the events that they missed, or an error that makes them list.
func (e *elsewhere) disturb(c *crowd) disturbance {
	return disturbance{times: 4, every: 300, do: func(round int, down func()) {
		if round%2 == 1 {
			down()
			e.kill()
			return
		}
		e.compact(e.t.Context(), c.acknowledged.Load()-rand.Int64N(20))
	}}
}

// TestWatchersOverCompactions compacts etcd directly between kills of the API server.
func TestWatchersOverCompactions(t *testing.T) {
	coracle := filepath.Join(host.Root(t), "bin/coracle")
	dir := t.TempDir()
	for _, name := range []string{upstream.Etcd, upstream.APIServer} {
		require.NoError(t, os.Symlink(coracle, filepath.Join(dir, name)))
	}
	newElsewhere(t, dir).run()
}

// TestUpstreamWatchers runs the same with upstream's programs: the checker must accept upstream's behaviour.
func TestUpstreamWatchers(t *testing.T) {
	newElsewhere(t, upstream.Needs(t)).run()
}

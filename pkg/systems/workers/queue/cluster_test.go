package queue

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// cluster returns a cluster of three NATS servers in this process.
func cluster(t *testing.T) (list []*servers) {
	var routes []*url.URL // a server without routes starts no JetStream
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
	}
	for i := range 3 {
		s := &servers{t: t, dir: t.TempDir(), port: server.RANDOM_PORT, id: "uid"}
		port, err := strconv.Atoi(routes[i].Port())
		require.NoError(t, err)
		s.start(func(o *server.Options) {
			o.ServerName, o.Routes = fmt.Sprint("n", i), routes
			o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}
		})
		t.Cleanup(s.stop)
		list = append(list, s)
	}
	for _, s := range list {
		require.True(t, s.ReadyForConnections(time.Minute))
	}
	return list
}

// TestClusterLosesAServer checks that a queue whose stream has three replicas keeps its accepted messages, and accepts
// further ones, when one of the NATS servers is lost for good together with the queue's home.
func TestClusterLosesAServer(t *testing.T) {
	list := cluster(t)
	var urls []string
	for _, s := range list {
		urls = append(urls, s.ClientURL())
	}
	s := list[0]
	s.context = t.TempDir() + "/context.json"
	s.save(map[string]any{"url": strings.Join(urls, ",")})
	a := s.home(nil)
	a.until(t, "")
	info, err := s.jetstream().Stream(context.Background(), "coracle-uid")
	require.NoError(t, err)
	require.Equal(t, 3, info.CachedInfo().Config.Replicas)
	var mu sync.Mutex
	var senders sync.WaitGroup
	accepted := map[string]bool{}
	send := func(h *home, from int, stop <-chan struct{}) {
		for n := from; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			id := fmt.Sprint(n)
			if h.Append(k, Limits{100_000}, []Message{message(id, true)})()[0] == nil {
				mu.Lock()
				accepted[id] = true
				mu.Unlock()
			}
		}
	}
	have := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(accepted)
	}
	stop := make(chan struct{})
	for i := range 8 {
		senders.Go(func() { send(a, i*100_000, stop) })
	}
	reach := func(n int) {
		require.Eventually(t, func() bool { return have() >= n }, time.Minute, time.Millisecond)
	}
	reach(200)
	for _, s := range list { // the stream's leader goes
		if s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, "coracle-uid") {
			s.stop()
			break
		}
	}
	reach(have() + 200)
	b := s.home(nil) // while a is still sending
	b.until(t, "")
	close(stop)
	senders.Wait()
	n := have()
	for i, err := 0, error(ErrUnavailable); err != nil; i++ { // the cluster may still settle
		require.Less(t, i, 100)
		err = b.Append(k, Limits{100_000}, []Message{message("last", true)})()[0]
	}
	found := map[string]bool{}
	for _, id := range ids(b) {
		found[id] = true
	}
	for id := range accepted {
		require.True(t, found[id], "message %s of %d was accepted and is lost", id, n)
	}
	require.NoError(t, a.close())
	require.NoError(t, b.close())
}

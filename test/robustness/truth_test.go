package robustness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coracle-dev/coracle/test/history"
)

// etcdEvents is one line of the watch response of etcd's gateway.
type etcdEvents struct {
	Result struct {
		Events []struct {
			Type string
			KV   struct {
				Key, Value  []byte
				ModRevision int64 `json:"mod_revision,string"`
			}
		}
	}
}

// truth records the changes that etcd itself reports, until the context is done: a client that must list after a kill
// does not see deletions. It returns when etcd has created the watch. ended is closed when the recording has ended.
func (e *elsewhere) truth(ctx context.Context, c *crowd) (ended <-chan struct{}) {
	prefix := "/registry/configmaps/" + crowdNamespace
	body, err := json.Marshal(map[string]any{
		"create_request": map[string]any{"key": []byte(prefix + "/"), "range_end": []byte(prefix + "0")},
	})
	require.NoError(e.t, err)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.etcd.EtcdURL+"/v3/watch", bytes.NewReader(body))
	require.NoError(e.t, err)
	answer, err := e.http.Do(request)
	require.NoError(e.t, err)
	lines := bufio.NewReader(answer.Body)
	_, err = lines.ReadBytes('\n') // etcd has created the watch
	require.NoError(e.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer answer.Body.Close()
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			e.record(c, line)
		}
	}()
	return done
}

func (e *elsewhere) record(c *crowd, line []byte) {
	var found etcdEvents
	if err := json.Unmarshal(line, &found); err != nil {
		e.t.Errorf("etcd sent %s: %v", line, err)
		return
	}
	for _, event := range found.Result.Events {
		key := event.KV.Key[bytes.LastIndexByte(event.KV.Key, '/')+1:]
		if strings.HasPrefix(string(key), "kube-") {
			continue // the cluster's authority
		}
		change := history.Change{Key: string(key)}
		if event.Type != "DELETE" {
			var u runtime.Unknown
			var m corev1.ConfigMap
			err := u.Unmarshal(bytes.TrimPrefix(event.KV.Value, []byte("k8s\x00")))
			if err == nil {
				err = m.Unmarshal(u.Raw)
			}
			if err != nil {
				e.t.Errorf("%s in etcd: %v", key, err)
			}
			change.State = stateOf(&m)
		}
		c.note(func() {
			c.h.Truth[event.KV.ModRevision] = change
			c.known = event.KV.ModRevision
		})
	}
}

package apiserver

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// After GOAWAY the client opens a new connection. A fast client may reuse the old one before it receives the frame.
func TestGoaway(t *testing.T) {
	for chance, want := range map[float64]bool{0: false, 1: true} {
		w := newWorld(t, func(c *Config) { c.GoawayChance = chance })
		made := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if !i.Reused {
				made++
			}
		}})
		for n := 0; n < 20 || want && made < 2 && n < 10_000; n++ {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/version", nil)
			require.NoError(t, err)
			r, err := w.http.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, r.Body)
			require.NoError(t, errors.Join(err, r.Body.Close()))
			require.Equal(t, 2, r.ProtoMajor)
		}
		require.Equal(t, want, made > 1, "chance %v", chance)
	}
}

// A watch continues after GOAWAY on its connection, which takes no further requests.
func TestAWatchOutlastsGoaway(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.GoawayChance = 1 })
	w.namespace("d")
	maps := w.clientset(w.as("admin", "system:masters")).CoreV1().ConfigMaps("d")
	events, err := maps.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer events.Stop()
	for _, name := range []string{"one", "two", "three"} {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, name, (<-events.ResultChan()).Object.(*corev1.ConfigMap).Name)
	}
}

// MinWatch limits a watch. Without the option, the test would wait for half an hour.
func TestWatchesLastAsLongAsTheOptionSays(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MinWatch = time.Nanosecond })
	r := w.do(w.http, "GET", "/api/v1/namespaces?watch=true", "")
	require.Equal(t, 200, r.code)
}

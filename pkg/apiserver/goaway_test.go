package apiserver

import (
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGoaway: the client's connection ends after a request, so that it makes another one for the next.
func TestGoaway(t *testing.T) {
	for chance, want := range map[float64]bool{0: true, 1: false} {
		w := newWorld(t, func(c *Config) { c.GoawayChance = chance })
		require.Equal(t, 200, w.do(w.http, "GET", "/version", "").code)
		var reused bool
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/version", nil)
		require.NoError(t, err)
		r, err := w.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, 2, r.ProtoMajor)
		require.Equal(t, want, reused, "chance %v", chance)
	}
}

func TestWatchesLastAsLongAsTheOptionSays(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MinWatch = time.Nanosecond })
	r := w.do(w.http, "GET", "/api/v1/namespaces?watch=true", "")
	require.Equal(t, 200, r.code)
}

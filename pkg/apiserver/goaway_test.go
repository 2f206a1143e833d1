package apiserver

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGoaway: the client's connection ends after a request, so that it makes another one for the next. A client that is quick uses the connection again
// before it has been told.
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

// Without the option, the test would wait for half an hour.
func TestWatchesLastAsLongAsTheOptionSays(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MinWatch = time.Nanosecond })
	r := w.do(w.http, "GET", "/api/v1/namespaces?watch=true", "")
	require.Equal(t, 200, r.code)
}

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
)

func TestLogsAreTextOrJSON(t *testing.T) {
	for format, want := range map[string]string{
		"text": `level=WARN msg="could not compact history" component=store after=1.5s revision=7`,
		"json": `"level":"WARN","msg":"could not compact history","component":"store","after":"1.5s","revision":7}`,
	} {
		var out bytes.Buffer
		h, err := logHandler(&out, "warn", format)
		require.NoError(t, err)
		log := component(component(slog.New(h), "server"), "store").With("after", 1500*time.Millisecond)
		log.Info("not logged")
		log.Warn("could not compact history", "revision", 7)
		require.Contains(t, out.String(), want)
		out.Reset()
		log.Error("recovered from a panic", "component", "probes")
		require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("component")), "a record names one component: %s", out.String())
		require.Contains(t, out.String(), "probes")
		if format == "json" {
			require.True(t, json.Valid(out.Bytes()))
		}
	}
	_, err := logHandler(nil, "loud", "text")
	require.Error(t, err)
}

// TestTheEndOfAnExecIsNoError checks that only this message with this error is dropped.
func TestTheEndOfAnExecIsNoError(t *testing.T) {
	var out bytes.Buffer
	log := logr.FromSlogHandler(fromLibraries(slog.NewTextHandler(&out, nil))).
		WithValues("component", "server").WithName("x")
	log.Error(fmt.Errorf("read tcp: %w", net.ErrClosed), "Error on socket receive")
	require.Empty(t, out.String())
	log.Error(io.ErrUnexpectedEOF, "Error on socket receive")
	require.Contains(t, out.String(), "unexpected EOF")
	log.Error(net.ErrClosed, "could not accept")
	require.Contains(t, out.String(), "could not accept")
}

// TestWhatClientsSendDoesNotFillTheLog checks that log records of libraries, which contain data from clients, are
// limited.
func TestWhatClientsSendDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := logr.FromSlogHandler(fromLibraries(slog.NewTextHandler(&out, nil)))
		long := strings.Repeat("x", 1<<20)
		log.Error(errors.New(long), "Couldn't parse request", "request", url.Values{"limit": {long}})
		require.Empty(t, out.String(), "nobody need be authenticated for it")
		for i := range 1000 {
			log.WithValues("i", i, "of", long).Error(errors.New(long), "failed to update managedFields", "name", long, "query",
				url.Values{"a": {long}}, "n", 7)
		}
		require.Equal(t, mostRecords, strings.Count(out.String(), "\n"))
		require.Less(t, out.Len(), 5*mostRecords*longestRecord)
		require.Contains(t, out.String(), "n=7")
		out.Reset()
		time.Sleep(recordsEvery)
		log.Error(nil, "later")
		require.Contains(t, out.String(), "count=950")
		require.Contains(t, out.String(), "later")
	})
}

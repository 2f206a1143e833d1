package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// SnapshotBackend is the part of a process that saves the cluster.
type SnapshotBackend interface {
	// Snapshot writes an archive of the cluster, which includes its keys.
	Snapshot(ctx context.Context, to io.Writer) error
}

const (
	// readTime is the timeout for the client to read a part of an archive. Meanwhile the store cannot reuse space.
	readTime = time.Minute
	// mostError is the maximum size of an error response, in bytes.
	mostError = 4 << 10
)

func (s *Server) snapshot(mux *http.ServeMux) {
	backend, ok := s.backend.(SnapshotBackend)
	if !ok {
		return
	}
	mux.HandleFunc("GET /snapshot", func(w http.ResponseWriter, r *http.Request) {
		body := &timely{w: w}
		if err := backend.Snapshot(r.Context(), body); err != nil {
			if body.begun { // makes the client see that the archive is incomplete
				panic(http.ErrAbortHandler)
			}
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

// timely is a writer that fails if the client does not read for readTime.
type timely struct {
	w     http.ResponseWriter
	begun bool
}

func (t *timely) Write(p []byte) (int, error) {
	t.begun = true
	if err := http.NewResponseController(t.w).SetWriteDeadline(time.Now().Add(readTime)); err != nil {
		return 0, err
	}
	return t.w.Write(p)
}

// Snapshot writes an archive of the cluster to w. If it fails, the output is incomplete.
func (c *Client) Snapshot(ctx context.Context, w io.Writer) error {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://coracle/snapshot", nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNotRunning
	}
	if err != nil {
		return errIncomplete(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, err := bounded.All(response.Body, mostError)
		if err != nil {
			return fmt.Errorf("the process responded with %s", response.Status)
		}
		return errors.New(strings.TrimSpace(string(text)))
	}
	if _, err := io.Copy(w, response.Body); err != nil {
		return errIncomplete(err)
	}
	return nil
}

func errIncomplete(err error) error {
	return fmt.Errorf("the snapshot is incomplete; the server's log says why: %w", err)
}

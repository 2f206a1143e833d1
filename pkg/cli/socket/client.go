package socket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"syscall"
	"time"
)

// ErrNotRunning means that no Coracle process serves the run directory.
var ErrNotRunning = errors.New("coracle is not running here: start it with `coracle start`")

// ErrNotServed means that the process runs without the part that would answer.
var ErrNotServed = errors.New("this process does not serve it")

// ErrSilent means that a process serves the run directory but does not respond: it hangs or was stopped by a signal.
var ErrSilent = errors.New("the coracle process does not respond: `coracle stop` kills it and leaves containers " +
	"running")

// A process that sends nothing for silence counts as hung. While it stops, it sends an event at least every heartbeat.
const (
	silence   = 20 * time.Second
	heartbeat = 5 * time.Second
)

// Client is a client of the process that serves a run directory.
type Client struct {
	// Silence is the time without output after which Status and Stop return ErrSilent. The default is 20 s.
	Silence time.Duration

	dial func(context.Context) (net.Conn, error)
}

// NewClient returns a Client. It does not connect.
func NewClient(runDir string) *Client {
	return &Client{Silence: silence, dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(runDir, Socket))
	}}
}

// Status returns the process's status. It returns ErrSilent after Silence without output.
func (c *Client) Status(ctx context.Context) (Status, error) { return c.status(ctx, "/status") }

// Health returns the status including the health of each component.
func (c *Client) Health(ctx context.Context) (Status, error) {
	return c.status(ctx, "/status?health=1")
}

// Read returns at most limit bytes of the response to a path below /debug/. It returns ErrNotServed if the process has
// no such part, such as a control plane.
func (c *Client) Read(ctx context.Context, path string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Silence)
	defer cancel()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://coracle"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotFound {
		return nil, ErrNotServed
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the process responded with %s to %s", answer.Status, path)
	}
	return io.ReadAll(io.LimitReader(answer.Body, limit))
}

func (c *Client) status(ctx context.Context, path string) (Status, error) {
	last, err := c.call(ctx, http.MethodGet, path, nil, nil, c.Silence)
	if err != nil {
		return Status{}, err
	}
	if last.Status == nil {
		return Status{}, errors.New("the process responded without a status")
	}
	return *last.Status, nil
}

// Stop terminates the pods and then the process, and reports progress. It returns when the process is about to
// exit, or ErrSilent if the process sends nothing for Silence. The pods may take any time.
func (c *Client) Stop(ctx context.Context, progress func(Event)) error {
	_, err := c.call(ctx, http.MethodPost, "/stop", nil, progress, c.Silence)
	return err
}

// RotateServiceAccountKey makes the server sign service account tokens with a new key. Tokens of the previous key
// stay valid for overlap.
func (c *Client) RotateServiceAccountKey(ctx context.Context, overlap time.Duration) error {
	_, err := c.call(ctx, http.MethodPost, "/certs/service-account?overlap="+overlap.String(), nil, nil, 0)
	return err
}

// Images lists the node's images.
func (c *Client) Images(ctx context.Context) (Event, error) {
	return c.call(ctx, http.MethodGet, "/images", nil, nil, 0)
}

// Load loads an archive into the node.
func (c *Client) Load(ctx context.Context, archive io.Reader) (Event, error) {
	return c.call(ctx, http.MethodPost, "/images", archive, nil, 0)
}

// Pull pulls an image from its registry and reports progress.
func (c *Client) Pull(ctx context.Context, ref string, progress func(Event)) (Event, error) {
	return c.call(ctx, http.MethodPost, "/images?pull="+url.QueryEscape(ref), nil, progress, 0)
}

// Remove removes an image by name or ID.
func (c *Client) Remove(ctx context.Context, ref string) error {
	_, err := c.call(ctx, http.MethodDelete, "/images?ref="+url.QueryEscape(ref), nil, nil, 0)
	return err
}

// call sends a request, passes events to progress, and returns the last event. An Error event becomes an error. If
// quiet is not 0, call returns ErrSilent when the process sends nothing for that long.
func (c *Client) call(ctx context.Context, method, path string, body io.Reader, progress func(Event),
	quiet time.Duration) (_ Event, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := func() {}
	if quiet > 0 {
		timer := time.AfterFunc(quiet, func() { cancel(ErrSilent) })
		defer timer.Stop()
		alive = func() { timer.Reset(quiet) }
		defer func() {
			if err != nil && errors.Is(context.Cause(ctx), ErrSilent) {
				err = ErrSilent
			}
		}()
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.dial(ctx)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "http://coracle"+path, body)
	if err != nil {
		return Event{}, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	// The last two occur when the process was just killed.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, io.EOF) {
		return Event{}, ErrNotRunning
	}
	if err != nil {
		return Event{}, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return Event{}, fmt.Errorf("the process responded with %s to %s %s", answer.Status, method, path)
	}
	decoder := json.NewDecoder(answer.Body)
	for {
		var e Event
		if err := decoder.Decode(&e); err != nil {
			return e, fmt.Errorf("the process exited while responding: %w", err)
		}
		alive()
		switch {
		case e.Error != "":
			return e, errors.New(e.Error)
		case e.Done:
			return e, nil
		case progress != nil && !reflect.ValueOf(e).IsZero(): // heartbeats are empty
			progress(e)
		}
	}
}

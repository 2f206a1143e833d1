package socket

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/host/socket"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Backend is the process that a Server serves.
type Backend interface {
	Status(ctx context.Context) Status
	// Health checks each component of the process. It takes at most a few seconds.
	Health(ctx context.Context) []Health
	// Debug serves the internal state of the process below /debug/coracle/.
	Debug() http.Handler
	// Stop terminates the node's pods gracefully, then the process. It reports each step.
	Stop(ctx context.Context, progress func(message string)) error
	// RotateServiceAccountKey makes a new key sign service account tokens. Tokens of the current key stay valid for
	// overlap.
	RotateServiceAccountKey(ctx context.Context, overlap time.Duration) error
	// Authorities returns the state of the CAs.
	Authorities(ctx context.Context) (Authorities, error)
	// ReplaceAuthorities starts to replace the named CAs, or all. FinishAuthorities completes it.
	ReplaceAuthorities(ctx context.Context, names []string) (Authorities, error)
	FinishAuthorities(ctx context.Context, names []string, force bool) (Authorities, error)
	// Images returns nil if the process runs no node.
	Images() runtime.Images
}

// Server is the component that serves the socket.
type Server struct {
	path    string
	backend Backend
	run.Readiness
}

// NewServer returns a Server in runDir, which must exist.
func NewServer(runDir string, backend Backend) *Server {
	return &Server{path: filepath.Join(runDir, Socket), backend: backend}
}

func (s *Server) Name() string { return "control" }

// Run serves until ctx is done. It replaces an existing socket, which a killed process left: the caller holds the
// lock of the data directory.
func (s *Server) Run(ctx context.Context) error {
	listener, err := socket.ListenUnix(s.path)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	shut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(shut)
		// Let pending requests, such as a stop, receive their last line.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	s.SetReady()
	err = server.Serve(listener)
	if !stop() {
		<-shut
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		status := s.backend.Status(r.Context())
		if r.URL.Query().Has("health") {
			status.Health = s.backend.Health(r.Context())
		}
		newProgressWriter(w)(Event{Status: &status, Done: true})
	})
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		progress := newProgressWriter(w)
		defer beat(progress)()
		// The stop continues if the client disconnects.
		err := s.backend.Stop(context.WithoutCancel(r.Context()), func(m string) { progress(Event{Message: m}) })
		finish(progress, nil, err)
	})
	mux.HandleFunc("POST /certs/service-account", func(w http.ResponseWriter, r *http.Request) {
		overlap, err := time.ParseDuration(r.URL.Query().Get("overlap"))
		if err == nil {
			err = s.backend.RotateServiceAccountKey(r.Context(), overlap)
		}
		finish(newProgressWriter(w), nil, err)
	})
	s.serveAuthorities(mux)
	s.encryption(mux)
	s.snapshot(mux)
	mux.HandleFunc("GET /images",
		s.images(func(r *http.Request, i runtime.Images, _ func(Event)) ([]runtime.Image, error) {
			return i.List(r.Context())
		}))
	mux.HandleFunc("POST /images",
		s.images(func(r *http.Request, i runtime.Images, progress func(Event)) ([]runtime.Image, error) {
			ref := r.URL.Query().Get("pull")
			if ref == "" {
				return i.Load(r.Context(), r.Body)
			}
			image, err := i.Pull(r.Context(), ref, nil, runtime.PullObserver{Progress: func(p runtime.Progress) {
				progress(Event{Bytes: p.Done, Total: p.Total})
			}})
			return []runtime.Image{image}, err
		}))
	mux.HandleFunc("DELETE /images",
		s.images(func(r *http.Request, i runtime.Images, _ func(Event)) ([]runtime.Image, error) {
			return nil, i.Remove(r.Context(), r.URL.Query().Get("ref"))
		}))
	mux.Handle("GET /debug/coracle/", s.backend.Debug())
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// beat sends heartbeats until the returned function is called, which waits for the last one.
func beat(progress func(Event)) (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(heartbeat)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				progress(Event{})
			case <-stop:
				return
			}
		}
	}()
	return func() { close(stop); <-ended }
}

func (s *Server) images(f func(*http.Request, runtime.Images, func(Event)) ([]runtime.Image, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		progress := newProgressWriter(w)
		images := s.backend.Images()
		if images == nil {
			finish(progress, nil, errors.New("this process runs no node and has no images: use a machine that runs a node"))
			return
		}
		list, err := f(r, images, progress)
		finish(progress, list, err)
	}
}

func finish(progress func(Event), images []runtime.Image, err error) {
	e := Event{Images: images, Done: err == nil}
	if err != nil {
		e.Error = err.Error()
	}
	progress(e)
}

// newProgressWriter returns a function that writes an event as a line and flushes it. The function is safe for
// concurrent use.
func newProgressWriter(w http.ResponseWriter) func(Event) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	// A handler may leave a part of the body unread, such as what follows an archive's end marker. In full duplex,
	// net/http would then read the rest and the next request at the same time, and panic.
	w.Header().Set("Connection", "close")
	// Loading an image reports progress while it reads the request body.
	_ = http.NewResponseController(w).EnableFullDuplex()
	var mu sync.Mutex
	encoder := json.NewEncoder(w)
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if encoder.Encode(e) == nil {
			_ = http.NewResponseController(w).Flush()
		}
	}
}

//go:build cgo

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// Server is the shim of one pod.
type Server struct {
	log    *slog.Logger
	reaper *reaper
	end    context.CancelFunc

	mu         sync.Mutex
	containers map[string]*container
	watchers   map[chan shim.Status]struct{}
	holder     *holder // first process of the pod's PID namespace; nil if there is none
	closing    bool
	idle       *time.Timer
}

// Serve serves requests on the listener until a client requests shutdown.
func Serve(l net.Listener, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := newReaper(ctx)
	if err != nil {
		return err
	}
	s := &Server{
		log:        log,
		reaper:     r,
		end:        cancel,
		containers: map[string]*container{},
		watchers:   map[chan shim.Status]struct{}{},
	}
	s.idle = time.AfterFunc(time.Second, debug.FreeOSMemory)
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go s.serve(conn)
	}
}

func (s *Server) serve(conn net.Conn) {
	defer conn.Close()
	defer s.idle.Reset(time.Second) // frees memory after a second without requests
	var req shim.Request
	if err := shim.ReadHead(conn, &req); err != nil {
		return
	}
	switch req.Op {
	case shim.Watch:
		s.watch(conn)
		return
	case shim.Exec, shim.Attach:
		c, err := s.running(req.ID)
		if err == nil {
			err = c.session(conn, req)
		}
		if err != nil {
			answer(conn, shim.Response{}, err)
		}
		return
	}
	res, err := s.call(req)
	answer(conn, res, err)
	if req.Op == shim.Shutdown && err == nil {
		s.end()
	}
}

func answer(conn net.Conn, res shim.Response, err error) {
	if err != nil {
		res.Error = err.Error()
		switch {
		case errors.Is(err, shim.ErrNotFound):
			res.Code = shim.CodeNotFound
		case errors.Is(err, shim.ErrNotRunning):
			res.Code = shim.CodeNotRunning
		}
	}
	_ = shim.WriteHead(conn, res)
}

func (s *Server) call(req shim.Request) (res shim.Response, err error) {
	switch req.Op {
	case shim.Start:
		res.Status, err = s.start(req)
		return res, err
	case shim.Remove:
		return res, s.remove(req.ID)
	case shim.PIDNS:
		res.PID, err = s.pidns(req.Users)
		return res, err
	case shim.Shutdown:
		return res, s.shutdown()
	}
	c, err := s.running(req.ID)
	if err != nil {
		return res, err
	}
	switch req.Op {
	case shim.Signal:
		return res, c.signal(syscall.Signal(req.Signal), req.All)
	case shim.Update:
		return res, c.update(req.Resources)
	case shim.Stats:
		res.Usage, err = c.usage()
		return res, err
	}
	return res, fmt.Errorf("unknown operation %q", req.Op)
}

func (s *Server) get(id string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[id]
	if !ok {
		return nil, shim.ErrNotFound
	}
	return c, nil
}

func (s *Server) running(id string) (*container, error) {
	c, err := s.get(id)
	if err != nil {
		return nil, err
	}
	if c.snapshot().State != stateRunning {
		return nil, shim.ErrNotRunning
	}
	return c, nil
}

func (s *Server) start(req shim.Request) (*shim.Status, error) {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil, errors.New("the pod is being removed")
	}
	c, ok := s.containers[req.ID]
	if !ok {
		c = &container{server: s, dir: req.Bundle, id: req.ID, exited: make(chan struct{}), done: make(chan struct{})}
		c.out, c.errs = &fan{exited: c.exited}, &fan{exited: c.exited}
		s.containers[req.ID] = c
	}
	s.mu.Unlock()
	c.starting.Do(c.start)
	status := c.snapshot()
	return &status, nil
}

func (s *Server) remove(id string) error {
	c, err := s.get(id)
	if err != nil {
		return nil
	}
	if err := c.remove(); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.containers, id)
	s.mu.Unlock()
	s.report(shim.Status{ID: id})
	return nil
}

func (s *Server) shutdown() error {
	s.mu.Lock()
	s.closing = true
	ids := slices.Collect(maps.Keys(s.containers))
	holder := s.holder
	s.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		wg.Go(func() { errs[i] = s.remove(id) })
	}
	wg.Wait()
	if holder != nil {
		holder.end()
	}
	return errors.Join(errs...)
}

// watchBound limits how many changes a watcher may lag before it is disconnected; clients then reconnect.
const watchBound = 256

func (s *Server) watch(conn net.Conn) {
	changes := make(chan shim.Status, watchBound)
	s.mu.Lock()
	var now []shim.Status
	for _, c := range s.containers {
		now = append(now, c.snapshot())
	}
	s.watchers[changes] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, changes)
		s.mu.Unlock()
	}()
	if shim.WriteHead(conn, shim.Response{}) != nil {
		return
	}
	for _, status := range append(now, shim.Status{}) {
		if shim.WriteHead(conn, status) != nil {
			return
		}
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1)) // a watcher writes nothing, so Read returns when it disconnects
	}()
	for {
		select {
		case status, ok := <-changes:
			if !ok || shim.WriteHead(conn, status) != nil {
				return
			}
		case <-gone:
			return
		}
	}
}

func (s *Server) report(status shim.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		select {
		case w <- status:
		default:
			close(w)
			delete(s.watchers, w)
		}
	}
}

func save(dir string, status shim.Status) error {
	if _, err := os.Stat(dir); err != nil {
		return nil // the container is being removed
	}
	return atomicfile.WriteJSON(shim.StateFile(dir), status)
}

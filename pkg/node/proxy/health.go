package proxy

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
)

// health serves the healthCheckNodePort of services with externalTrafficPolicy Local. Load balancers use it to check
// whether this node has ready endpoints.
type health struct {
	log    *slog.Logger
	done   sync.WaitGroup
	mu     sync.Mutex
	served map[types.NamespacedName]*served
}

type served struct {
	port     uint16
	listener net.Listener // nil if the port is in use
	server   *http.Server
	mu       sync.Mutex
	count    int
}

// maxChecks and maxChecksEach limit the connections of a port, and of one client to it: every pod and every machine of
// the network can connect.
const maxChecks, maxChecksEach = 64, 16

func newHealth(log *slog.Logger) *health {
	return &health{log: log, served: map[types.NamespacedName]*served{}}
}

// set updates the ports and local endpoint counts of some services. It closes ports before it opens others, because
// a port may move from one service to another.
func (h *health) set(plans map[types.NamespacedName]*servicePlan) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, p := range plans {
		if s := h.served[name]; s != nil && s.port != p.healthPort {
			s.close()
			delete(h.served, name)
		}
	}
	for name, p := range plans {
		if p.healthPort == 0 {
			continue
		}
		s := h.served[name]
		if s == nil {
			s = &served{port: p.healthPort}
			h.served[name] = s
		}
		if s.listener == nil {
			h.listen(name, s)
		}
		s.mu.Lock()
		s.count = p.healthCount
		s.mu.Unlock()
	}
}

func (s *served) close() {
	if s.listener != nil {
		_ = s.listener.Close() // Serve may not have registered it yet
		_ = s.server.Close()
	}
}

func (h *health) listen(name types.NamespacedName, s *served) {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(int(s.port)))
	if err != nil {
		h.log.Error("could not serve health check port of service", "service", name, "port", s.port, "error", err)
		return
	}
	s.listener = l
	s.server = &http.Server{
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			s.mu.Lock()
			count := s.count
			s.mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
			if count == 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{
				"service":        map[string]string{"namespace": name.Namespace, "name": name.Name},
				"localEndpoints": count, "serviceProxyHealthy": true})
		}),
	}
	server, limited := s.server, connlimit.New(l, connlimit.Config{Most: maxChecks, Each: maxChecksEach, Logger: h.log})
	h.done.Go(func() { _ = server.Serve(limited) })
}

func (h *health) stop() {
	h.mu.Lock()
	for name, s := range h.served {
		s.close()
		delete(h.served, name)
	}
	h.mu.Unlock()
	h.done.Wait()
}

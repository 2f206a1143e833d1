package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
)

const (
	// registrationTime is how long an admitted machine has to register its Node. mostAdmitted is the maximum number
	// of machines that are admitted and not registered.
	registrationTime = 5 * time.Minute
	mostAdmitted     = 1024
)

// members decides which node certificates are trusted: the certificates of the machine that owns the Node
// (machine.go) or, before the Node exists, of the machine that a join token admitted under the name. Deleting a Node
// thus excludes its machine at once and cancels its open requests, such as watches.
//
// Admissions are in memory: a machine that has not registered when this process ends must join again.
type members struct {
	client client.Interface
	run.Readiness

	mu       sync.Mutex
	admitted map[string]admission                       // by node name
	requests map[string]map[*request]context.CancelFunc // in flight, by node name; "" for other users
	nodes    *authorities                               // forgets deleted nodes; may be nil
}

type admission struct {
	machine string
	until   time.Time
}

type request struct{ cert *x509.Certificate }

var _ run.Component = (*members)(nil)

func newMembers(c client.Interface, a *authorities) *members {
	return &members{
		client:   c,
		nodes:    a,
		admitted: map[string]admission{},
		requests: map[string]map[*request]context.CancelFunc{},
	}
}

func (m *members) Name() string { return "members" }

func (m *members) Run(ctx context.Context) error {
	nodes, err := m.client.Cache().GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return err
	}
	registration, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if n, ok := o.(*corev1.Node); ok {
				m.seen(n)
			}
		},
		UpdateFunc: func(_, o any) {
			if n, ok := o.(*corev1.Node); ok {
				m.seen(n)
			}
		},
		DeleteFunc: func(o any) {
			if lost, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = lost.Obj
			}
			if n, ok := o.(*corev1.Node); ok {
				m.end(n.Name, func(*request) bool { return true })
				if m.nodes != nil {
					m.nodes.forget(n.Name)
				}
			}
		},
	})
	if err != nil {
		return err
	}
	m.SetReady()
	<-ctx.Done()
	return nodes.RemoveEventHandler(registration)
}

// seen ends an admission once its Node is registered, and cancels requests of machines that do not own the Node.
func (m *members) seen(node *corev1.Node) {
	if owner(node) == "" {
		return
	}
	m.mu.Lock()
	delete(m.admitted, node.Name)
	m.mu.Unlock()
	m.end(node.Name, func(r *request) bool {
		machine, err := pki.Identity(r.cert.PublicKey)
		return err != nil || machine != owner(node)
	})
}

func (m *members) end(name string, which func(*request) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r, cancel := range m.requests[name] {
		if which(r) {
			cancel()
		}
	}
}

// endUnbelieved cancels requests whose client certificates the CAs no longer verify.
func (m *members) endUnbelieved(authorities *x509.CertPool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, requests := range m.requests {
		for r, cancel := range requests {
			if _, err := r.cert.Verify(x509.VerifyOptions{
				Roots: authorities, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}); err != nil {
				cancel()
			}
		}
	}
}

// admit lets a machine register a Node that does not exist yet. It fails if too many machines are admitted.
func (m *members) admit(name, machine string, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.admitted) >= mostAdmitted {
		maps.DeleteFunc(m.admitted, func(_ string, a admission) bool { return now.After(a.until) })
	}
	if _, again := m.admitted[name]; !again && len(m.admitted) >= mostAdmitted {
		return errors.New("too many machines have joined and not registered their node yet: try again later")
	}
	m.admitted[name] = admission{machine, now.Add(registrationTime)}
	return nil
}

// check implements apiserver.Config.CheckNode. node is nil if the Node does not exist.
func (m *members) check(name string, node *corev1.Node, cert *x509.Certificate) error {
	machine, err := pki.Identity(cert.PublicKey)
	if err != nil {
		return err
	}
	if node != nil && owner(node) != "" {
		if !mine(node, machine) {
			return ownedByOther(name)
		}
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.admitted[name]; ok && a.machine == machine && time.Now().Before(a.until) {
		return nil
	}
	return fmt.Errorf("the node %s was deleted from the cluster, or never registered: to bring this machine back, join "+
		"again with a new token, created with `coracle token create` on the server", name)
}

// handler makes requests with client certificates cancellable: a node's when its membership ends, and any when its
// CA is removed.
func (m *members) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		cert := r.TLS.PeerCertificates[0]
		name, node := strings.CutPrefix(cert.Subject.CommonName, nodeUser(""))
		if !node {
			name = ""
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		own := &request{cert}
		// Register the request before it is authenticated: if the Node is deleted in between, either check notices.
		m.mu.Lock()
		if m.requests[name] == nil {
			m.requests[name] = map[*request]context.CancelFunc{}
		}
		m.requests[name][own] = cancel
		m.mu.Unlock()
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.requests[name], own)
			if len(m.requests[name]) == 0 {
				delete(m.requests, name)
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

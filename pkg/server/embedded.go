package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// EmbeddedConfig configures a control plane inside another program.
type EmbeddedConfig struct {
	// Config has the options of the control plane. Options of the process and of a node have no effect, except
	// DataDir, which must exist.
	Config config.Config
	// Listener accepts the API's connections. Run closes it. Its address must not be unspecified.
	Listener net.Listener
	// Volatile skips fsync: a power failure loses data, the end of the process does not. Requests are aborted when
	// Run's context is done.
	Volatile bool
	Given    Given
	// Log is required.
	Log *slog.Logger
}

// Embedded is a control plane inside another program. It has no node and nothing that exists once per process: no
// control socket, no lock on the data directory, no loggers of libraries. Several can run in one process.
type Embedded struct {
	plane *plane
	// Readiness is signalled once all components run and the bootstrap objects exist.
	run.Readiness
}

// Given replaces what a control plane otherwise creates in its data directory. Zero fields have no effect.
type Given struct {
	// Etcd are the etcd servers that store the objects.
	Etcd store.Servers
	// Address is the API's address for nodes and pods. The default is the listener's address; see reachable.
	Address netip.Addr
	// Certificate returns the API's serving certificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs verify client certificates. They replace the control plane's own client CA.
	ClientCAs []*x509.Certificate
	// Tokens authenticates bearer tokens other than service accounts' tokens.
	Tokens authenticator.Token
	// Flags are shown in /flagz. The default is the options of the configuration.
	Flags map[string]string
	// AlwaysAllow authorizes every request.
	AlwaysAllow bool
}

// NewEmbedded creates a control plane; Run starts it.
func NewEmbedded(c EmbeddedConfig) (*Embedded, error) {
	if c.Listener == nil || c.Log == nil {
		return nil, errors.New("an embedded control plane needs a listener and a log")
	}
	c.Config.Listen = c.Listener.Addr().String()
	address, err := netip.ParseAddrPort(c.Config.Listen)
	if err != nil {
		return nil, err
	}
	c.Config.NodeName = cmp.Or(c.Config.NodeName, "localhost")
	c.Config.NodeIP = address.Addr().Unmap().String()
	if !c.Given.Address.IsValid() {
		c.Given.Address = reachable(address.Addr().Unmap())
	}
	if err := c.Config.Validate(); err != nil {
		return nil, err
	}
	p := &process{Config: c.Config, log: c.Log, began: time.Now(), metrics: newRegistries(), started: make(chan struct{}),
		nodeIP: address.Addr().Unmap(), listener: c.Listener, volatile: c.Volatile, given: c.Given}
	if c.Volatile {
		p.drain = -1
	}
	keys, err := pki.Load(pkiDir(c.Config.DataDir))
	if err != nil {
		return nil, err
	}
	l, err := newPlane(p, keys)
	if err != nil {
		return nil, err
	}
	p.plane, p.store, p.url, p.kubeconfig = l, l.store, l.url, l.kubeconfig
	return &Embedded{plane: l}, nil
}

// reachable returns an address for the API's endpoints, which must not be a loopback address. For a loopback
// address it returns the address of the default route, as upstream does, or without a default route 192.0.2.1 (RFC
// 5737), which no host has.
func reachable(a netip.Addr) netip.Addr {
	if !a.IsLoopback() {
		return a
	}
	if outward, err := outwardAddress(); err == nil {
		return outward
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, 1})
}

func (g *Given) use(c *apiserver.Config) {
	if g.Certificate != nil {
		c.TLS.GetCertificate = g.Certificate
	}
	if g.ClientCAs != nil {
		pool := poolOf(g.ClientCAs)
		c.ClientCAs = func() *x509.CertPool { return pool }
	}
	if g.Tokens != nil {
		c.Tokens = g.Tokens
	}
	if g.Flags != nil {
		c.Flags = g.Flags
	}
	c.AlwaysAllow = g.AlwaysAllow
}

// clientAuthorities returns the CAs that verify client certificates.
func (l *plane) clientAuthorities() []*x509.Certificate {
	if given := l.process.given.ClientCAs; given != nil {
		return given
	}
	present, old := l.keys.Client.Certificates()
	if old == nil {
		return []*x509.Certificate{present}
	}
	return []*x509.Certificate{present, old}
}

// Run runs the control plane until ctx is done. Call it at most once.
func (e *Embedded) Run(ctx context.Context) error {
	p := e.plane.process
	ctx, stop := p.lingering(ctx, false)
	defer stop()
	defer p.listener.Close() // the API server may not have started, and then does not close it
	components := append(e.plane.components(), &last{notify: func(context.Context) {
		close(p.started)
		e.SetReady()
	}})
	return run.All(ctx, run.Observer{
		Started: func(name string, took time.Duration) {
			p.log.Debug("component started", "component", name, "took", took)
		},
		Hung: hung(p.log),
	}, components...)
}

// URL returns the address of the API.
func (e *Embedded) URL() string { return e.plane.url }

// Kubeconfig returns the path of the administrator's kubeconfig, which NewEmbedded has written.
func (e *Embedded) Kubeconfig() string { return e.plane.kubeconfig }

// Client returns an in-process client that acts as the user.
func (e *Embedded) Client(name string, groups ...string) client.Interface {
	return e.plane.client(name, groups...)
}

// Trust returns the CA bundle that verifies the API's certificate, as PEM.
func (e *Embedded) Trust() []byte { return e.plane.keys.Server.Bundle() }

// Issue returns a client certificate for a user and its key, as PEM.
func (e *Embedded) Issue(name string, groups ...string) (cert, key []byte, err error) {
	return e.plane.keys.Client.Issue(pki.Leaf{Name: name, Groups: groups})
}

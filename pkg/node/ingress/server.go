package ingress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
)

type server struct {
	config  Config
	http    *http.Server
	https   *http.Server
	open    map[netip.AddrPort]net.Listener
	done    sync.WaitGroup
	limits  connlimit.Config
	ended   context.CancelFunc
	handler *handler
}

// drain is how long requests may still take after the last Ingress was deleted or the process was asked to stop.
const drain = 5 * time.Second

func newServer(c Config, h *handler) *server {
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{config: c, open: map[netip.AddrPort]net.Listener{}, ended: cancel, handler: h,
		limits: connlimit.Config{Most: maxConnections, Each: maxConnectionsEach, Logger: c.Log}}
	one := func() *http.Server {
		p := new(http.Protocols)
		p.SetHTTP1(true)
		return &http.Server{
			Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, Protocols: p,
			HTTP2: &http.HTTP2Config{
				MaxConcurrentStreams: maxStreams,
				SendPingTimeout:      time.Minute,
				PingTimeout:          15 * time.Second,
			},
			ErrorLog:    slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
			BaseContext: func(net.Listener) context.Context { return ctx },
		}
	}
	s.http, s.https = one(), one()
	s.http.Protocols.SetUnencryptedHTTP2(true)
	s.https.Protocols.SetHTTP2(true)
	fallback := sync.OnceValues(selfSigned)
	s.https.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := h.table.Load().certificate(hello.ServerName); c != nil {
				return c, nil
			}
			return fallback()
		},
	}
	return s
}

// listen opens the ports that are not open yet. It returns an error for each that cannot be opened.
func (s *server) listen() (errs []error) {
	for _, address := range s.config.Addresses {
		for port, server := range map[uint16]*http.Server{s.config.HTTPPort: s.http, s.config.HTTPSPort: s.https} {
			at := netip.AddrPortFrom(address, port)
			if port == 0 || s.open[at] != nil {
				continue
			}
			l, err := net.Listen("tcp", at.String())
			if err != nil {
				errs = append(errs, fmt.Errorf("cannot listen on %s of node %s: %w", at, s.config.NodeName, err))
				continue
			}
			s.open[at] = l
			s.serve(l, server)
			s.config.Log.Info("serving ingress", "address", at)
		}
	}
	return errs
}

// serve makes one of the two servers accept the listener's connections until stop.
func (s *server) serve(l net.Listener, server *http.Server) {
	limited := connlimit.New(l, s.limits)
	s.done.Go(func() {
		if server == s.https {
			_ = server.ServeTLS(limited, "", "")
		} else {
			_ = server.Serve(limited)
		}
	})
}

// stop closes the listeners at once, waits up to drain for requests, and then closes all connections.
func (s *server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	var both sync.WaitGroup
	for _, one := range []*http.Server{s.http, s.https} {
		both.Go(func() {
			if one.Shutdown(ctx) != nil {
				_ = one.Close()
			}
		})
	}
	both.Wait()
	s.ended()
	s.done.Wait()
}

// selfSigned returns a certificate for hosts that have none. It is kept only in memory.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Coracle Ingress default certificate"},
		DNSNames:  []string{"ingress.local"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/pki"
	"github.com/coracle-dev/coracle/pkg/run"
)

const (
	// joinPatience bounds one join, or renewal.
	joinPatience = 30 * time.Second
	// connectPatience bounds the making of a connection. A connection on which nothing came for silence is asked whether it
	// still lives, and given up half as long later. All three together leave time to renew the node's lease before
	// the node counts as lost, when it is only the connection that was.
	connectPatience = 10 * time.Second
	silence         = 10 * time.Second
	// renewalRetry is the least pause between renewals: after one that failed, of which a third of a certificate's life allows
	// many; or if the server's clock is so far behind that its certificates are old from the start.
	renewalRetry = 5 * time.Minute
	// clockCheck bounds how long a renewal is waited for in one go: the clock runs on while the machine is suspended, timers do not.
	clockCheck = time.Hour
)

// identity is who a joined machine is in its cluster: its key, which is on disk and never leaves the machine, and the certificates
// that the server issued for it, which are not. It is the component that has them renewed in time, and the transport by which
// the machine reaches the API.
type identity struct {
	server, token, nodeName, nodeIP string
	key                             *ecdsa.PrivateKey
	dial                            func(ctx context.Context, network, address string) (net.Conn, error)
	log                             *slog.Logger

	present atomic.Pointer[joined]
	refused chan struct{} // the API did not believe us
	ready   chan struct{}
}

var (
	_ run.Component     = (*identity)(nil)
	_ http.RoundTripper = (*identity)(nil)
)

// joined is what one join gave. It does not change.
type joined struct {
	joinAnswer
	serving   tls.Certificate
	transport *http.Transport
	renewal   time.Time
}

// Name implements run.Component.
func (i *identity) Name() string { return "identity" }

// Ready implements run.Component.
func (i *identity) Ready() <-chan struct{} { return i.ready }

// Run renews the certificates when it is time, or when they are refused, until ctx ends. A renewal is a join with the same
// key: it works as well with certificates that have ended, after a long sleep, and if the machine has lost its name it
// finds out why.
func (i *identity) Run(ctx context.Context) error {
	close(i.ready)
	defer func() { i.present.Load().transport.CloseIdleConnections() }()
	var tried time.Time
	for {
		wait, refused := time.Until(i.present.Load().renewal), i.refused
		if pause := time.Until(tried.Add(renewalRetry)); pause > 0 {
			wait, refused = pause, nil
		}
		if wait > 0 {
			timer := time.NewTimer(min(wait, clockCheck))
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-refused:
				timer.Stop()
			case <-timer.C:
				continue
			}
		}
		tried = time.Now()
		old := i.present.Load()
		if err := i.join(ctx); err != nil {
			if ctx.Err() == nil {
				i.log.Warn("cannot renew the node's certificates; trying again", "in", renewalRetry, "until", old.serving.Leaf.NotAfter, "error", err)
			}
			continue
		}
		select {
		case <-i.refused: // before this
		default:
		}
		// Watches go on over the connections that they have; those end when they are idle.
		old.transport.CloseIdleConnections()
		i.log.Info("renewed the node's certificates", "until", i.present.Load().serving.Leaf.NotAfter)
	}
}

// RoundTrip implements http.RoundTripper with the present certificate: connections of an earlier one get no new requests.
func (i *identity) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := i.present.Load().transport.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusUnauthorized {
		select {
		case i.refused <- struct{}{}:
		default:
		}
	}
	return answer, err
}

// serving fits tls.Config.GetCertificate.
func (i *identity) serving(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &i.present.Load().serving, nil
}

// join fetches the server's authority, checks it against the token, and asks for certificates for the key.
func (i *identity) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	// Whoever answers is checked against the hash in the token before the token is said.
	authority, err := i.exchange(ctx, &tls.Config{InsecureSkipVerify: true}, http.MethodGet, authorityPath, "", nil)
	if err != nil {
		return err
	}
	trusted, err := pki.VerifyAuthority(i.token, authority)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(i.key.Public())
	if err != nil {
		return err
	}
	ask, err := json.Marshal(joinRequest{i.nodeName, i.nodeIP, public})
	if err != nil {
		return err
	}
	answer, err := i.exchange(ctx, &tls.Config{RootCAs: trusted}, http.MethodPost, joinPath, strings.TrimSpace(i.token), ask)
	if err != nil {
		return err
	}
	j := &joined{}
	if err := json.Unmarshal(answer, &j.joinAnswer); err != nil {
		return fmt.Errorf("the server's answer to the join: %w", err)
	}
	client, err := pki.Pair(j.Client, i.key)
	if err != nil {
		return fmt.Errorf("the client certificate that the server issued: %w", err)
	}
	if j.serving, err = pki.Pair(j.Serving, i.key); err != nil {
		return fmt.Errorf("the serving certificate that the server issued: %w", err)
	}
	j.renewal = pki.Renewal(client.Leaf)
	if r := pki.Renewal(j.serving.Leaf); r.Before(j.renewal) {
		j.renewal = r
	}
	j.transport = &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted, Certificates: []tls.Certificate{client}},
		Proxy:           http.ProxyFromEnvironment,
		DialContext:     i.dial, TLSHandshakeTimeout: connectPatience, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 25,
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence / 2},
	}
	i.present.Store(j)
	return nil
}

func (i *identity) exchange(ctx context.Context, trust *tls.Config, method, path, token string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, i.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: trust, DialContext: i.dial}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(request)
	var unreachable *net.OpError
	if errors.As(err, &unreachable) {
		return nil, fmt.Errorf("no server answers at %s (%w): check --join, and that the port is open", request.URL.Host, unreachable.Err)
	}
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return text, err
}

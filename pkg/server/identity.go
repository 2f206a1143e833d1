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
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/bounded"
	"github.com/coracle-dev/coracle/pkg/client/servers"
	"github.com/coracle-dev/coracle/pkg/jointoken"
	"github.com/coracle-dev/coracle/pkg/pki"
	"github.com/coracle-dev/coracle/pkg/run"
)

const (
	// joinPatience is the timeout of a join or renewal.
	joinPatience = 30 * time.Second
	// connectPatience is the timeout for connecting. An idle connection is pinged after silence, and closed if there is
	// no answer for half as long. The sum leaves time to renew the node's lease over another connection before the node
	// counts as lost.
	connectPatience = 10 * time.Second
	silence         = 10 * time.Second
	// connectShort and silenceShort replace them where there are other servers to turn to. Connections that were made while there was
	// one server are kept until the next renewal or start.
	connectShort = 3 * time.Second
	silenceShort = 2 * time.Second
	// renewalRetry is the minimum interval between renewals: after a failed one, of which a third of a certificate's
	// lifetime allows many, or if the server's clock is so far behind that its certificates are due from the start.
	renewalRetry = 5 * time.Minute
	// followPause is the minimum interval between renewals due to changed CAs. It doubles with each one that fails, up to renewalRetry.
	followPause = 5 * time.Second
	// clockCheck limits a single wait for a renewal: the clock continues while the machine is suspended, timers do not.
	clockCheck = time.Hour
	// maxJoinAnswer and maxIdentityFile are in bytes.
	maxJoinAnswer   = 1 << 20
	maxIdentityFile = 1 << 20
)

// identity is the identity of a joined machine in its cluster: its key, which never leaves the machine, and the
// certificates that the server issued for it. Key, client certificate and the server's CA are on disk, so that the
// machine needs a token only once. It is a component that renews the certificates in time, and the transport by which
// the machine reaches the API.
type identity struct {
	servers          *servers.List
	nodeName, nodeIP string
	token            string // empty if the machine has joined before
	dir              string // of the files
	key              *ecdsa.PrivateKey
	log              *slog.Logger

	present atomic.Pointer[joined]
	refused chan struct{} // authentication failed on either side
	changed chan struct{} // the server's CAs have changed
	ready   chan struct{}
}

// The files of an identity besides the key.
const (
	machineCertificate = "machine.crt"
	serverAuthority    = "cluster-ca.crt"
	lastAnswer         = "membership.json" // the servers' last response to a join or renewal; it has no key
)

var (
	_ run.Component     = (*identity)(nil)
	_ http.RoundTripper = (*identity)(nil)
)

// credentials are what a machine needs to reach its cluster.
type credentials struct {
	trusted *x509.CertPool
	client  tls.Certificate
}

// joined is the result of a join or renewal. It is immutable.
type joined struct {
	joinAnswer
	credentials
	serving   tls.Certificate
	clients   *x509.CertPool // of ClientCA
	transport *http.Transport
	renewal   time.Time
}

// refusal is an error response of the server.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

// shutOut reports whether a renewal failed because the machine is no longer a member, and can only join again.
func shutOut(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.code == http.StatusForbidden
}

// Name implements run.Component.
func (i *identity) Name() string { return "identity" }

// Ready implements run.Component.
func (i *identity) Ready() <-chan struct{} { return i.ready }

// Run renews the certificates when due, when they are refused, or when the cluster's CAs change, until ctx is done. A
// renewal works with expired certificates too, as after a long suspension. If the machine has lost its membership, Run
// fails with the reason.
func (i *identity) Run(ctx context.Context) error {
	close(i.ready)
	defer func() { i.present.Load().transport.CloseIdleConnections() }()
	var tried time.Time
	failures := 0
	for {
		wait, refused, changed := time.Until(i.present.Load().renewal), i.refused, i.changed
		if pause := time.Until(tried.Add(renewalRetry)); pause > 0 {
			wait, refused = pause, nil
			if follow := time.Until(tried.Add(followAfter(failures))); follow > 0 {
				wait, changed = follow, nil
			}
		}
		if wait > 0 {
			timer := time.NewTimer(min(wait, clockCheck))
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-refused:
				timer.Stop()
			case <-changed:
				timer.Stop()
				i.log.Info("certificate authorities changed, renewing node certificates")
			case <-timer.C:
				continue
			}
		}
		tried = time.Now()
		old := i.present.Load()
		err := i.renew(ctx, old.credentials)
		if err != nil {
			failures++
			if shutOut(err) {
				return err
			}
			if ctx.Err() == nil {
				i.log.Warn("could not renew node certificates, retrying", "after", renewalRetry, "until", old.serving.Leaf.NotAfter, "error", err)
			}
			continue
		}
		failures = 0
		for _, before := range []chan struct{}{i.refused, i.changed} {
			select {
			case <-before:
			default:
			}
		}
		// Watches continue over existing connections, which are closed when idle.
		old.transport.CloseIdleConnections()
		i.log.Info("renewed node certificates", "until", i.present.Load().serving.Leaf.NotAfter)
	}
}

// followAfter is the pause after a renewal until one due to changed CAs, after so many failures. The server may have been killed while it
// replaced its CAs, and is back a moment later.
func followAfter(failures int) time.Duration {
	return min(followPause<<min(failures, 10), renewalRetry)
}

// RoundTrip implements http.RoundTripper with the current certificate: connections with an earlier one get no new
// requests.
func (i *identity) RoundTrip(r *http.Request) (*http.Response, error) {
	present := i.present.Load()
	r = r.Clone(r.Context())
	r.Header.Set(versionHeader, present.Version)
	answer, err := i.servers.RoundTrip(present.transport, r)
	notice := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	switch {
	case err != nil && errors.As(err, new(x509.UnknownAuthorityError)), err == nil && answer.StatusCode == http.StatusUnauthorized:
		notice(i.refused)
	case err == nil:
		if there := answer.Header.Get(versionHeader); there != "" && there != i.present.Load().Version {
			notice(i.changed)
		}
	}
	return answer, err
}

// clientCAs returns the CAs trusted by the node's own API.
func (i *identity) clientCAs() *x509.CertPool { return i.present.Load().clients }

// serving implements tls.Config.GetCertificate.
func (i *identity) serving(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &i.present.Load().serving, nil
}

// enter makes the machine a member of the cluster, with its existing identity or with the token.
func (i *identity) enter(ctx context.Context) error {
	kept, err := i.load()
	if err == nil && kept == nil {
		err = errors.New("this machine has not joined the cluster yet: pass a join token, created with `coracle token create` on the server")
	}
	if err == nil {
		err = i.renew(ctx, *kept)
	}
	var unreachable *unreachableError
	if err == nil || i.token == "" || errors.As(err, &unreachable) {
		return err
	}
	return i.join(ctx)
}

// enterOrResume is enter; a machine whose servers do not answer goes on with what they said when they last did, if its certificates are still
// valid. Its static pods need no server.
func (i *identity) enterOrResume(ctx context.Context) error {
	err := i.enter(ctx)
	if err == nil || !errors.As(err, new(*unreachableError)) {
		return err
	}
	answer, missing := bounded.File(filepath.Join(i.dir, lastAnswer), maxJoinAnswer)
	if missing != nil {
		return err
	}
	j, invalid := i.parse(answer)
	if invalid != nil {
		return errors.Join(err, fmt.Errorf("%s: %w", filepath.Join(i.dir, lastAnswer), invalid))
	}
	for _, c := range []tls.Certificate{j.client, j.serving} {
		if time.Now().After(c.Leaf.NotAfter) || c.Leaf.Subject.CommonName != nodeUser(i.nodeName) {
			return err
		}
	}
	i.present.Store(j)
	i.log.Warn("no server answers, going on as the node that this machine was", "error", err)
	return nil
}

// load reads the credentials on disk; nil if there are none.
func (i *identity) load() (*credentials, error) {
	authority, err := bounded.File(filepath.Join(i.dir, serverAuthority), maxIdentityFile)
	if err == nil {
		var cert []byte
		if cert, err = bounded.File(filepath.Join(i.dir, machineCertificate), maxIdentityFile); err == nil {
			c := &credentials{trusted: x509.NewCertPool()}
			if !c.trusted.AppendCertsFromPEM(authority) {
				return nil, fmt.Errorf("%s has no certificate: join again with a token", filepath.Join(i.dir, serverAuthority))
			}
			if c.client, err = pki.Pair(cert, i.key); err != nil {
				return nil, fmt.Errorf("%s: %w: join again with a token", filepath.Join(i.dir, machineCertificate), err)
			}
			return c, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// join fetches the server's CA, checks it against the token, and requests certificates for the key.
func (i *identity) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	token, err := jointoken.Parse(i.token)
	if err != nil {
		return err
	}
	// The server is verified with the hash in the token before the token is sent.
	shown, err := i.exchange(ctx, &tls.Config{InsecureSkipVerify: true}, http.MethodGet, authorityPath, "", nil)
	if err != nil {
		return err
	}
	authority, err := token.Authority(shown)
	if err != nil {
		return err
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(authority)
	return i.ask(ctx, &tls.Config{RootCAs: trusted}, joinPath, token.String())
}

// renew requests new certificates with the current ones.
func (i *identity) renew(ctx context.Context, c credentials) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	err := i.ask(ctx, &tls.Config{
		RootCAs:              c.trusted,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.client, nil },
	}, renewPath, "")
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		err = fmt.Errorf("the server does not belong to the cluster that this machine has joined, or its authorities were replaced while this machine was away (%w): "+
			"to join, start the agent with a token", err)
	}
	return err
}

func (i *identity) ask(ctx context.Context, config *tls.Config, path, token string) error {
	public, err := x509.MarshalPKIXPublicKey(i.key.Public())
	if err != nil {
		return err
	}
	ask, err := json.Marshal(joinRequest{i.nodeName, i.nodeIP, public})
	if err != nil {
		return err
	}
	answer, err := i.exchange(ctx, config, http.MethodPost, path, token, ask)
	if err != nil {
		return err
	}
	return i.take(answer)
}

// take makes the response to a join or renewal the current identity, and saves it.
func (i *identity) take(answer []byte) error {
	j, err := i.parse(answer)
	if err != nil {
		return err
	}
	i.present.Store(j)
	if err := errors.Join(pki.WriteFile(filepath.Join(i.dir, serverAuthority), j.ServerCA), pki.WriteFile(filepath.Join(i.dir, machineCertificate), j.Client),
		pki.WriteFile(filepath.Join(i.dir, lastAnswer), answer)); err != nil {
		i.log.Warn("could not save machine certificate, the next start may need a join token", "error", err)
	}
	return nil
}

// parse returns what a response means for this machine.
func (i *identity) parse(answer []byte) (*joined, error) {
	j := &joined{credentials: credentials{trusted: x509.NewCertPool()}}
	if err := json.Unmarshal(answer, &j.joinAnswer); err != nil {
		return nil, fmt.Errorf("the server's response to the join: %w", err)
	}
	if !j.trusted.AppendCertsFromPEM(j.ServerCA) {
		return nil, errors.New("the server's response to the join has no serving CA")
	}
	j.clients = x509.NewCertPool()
	if !j.clients.AppendCertsFromPEM(j.ClientCA) {
		return nil, errors.New("the server's response to the join has no client CA")
	}
	var err error
	if j.client, err = pki.Pair(j.Client, i.key); err != nil {
		return nil, fmt.Errorf("the client certificate that the server issued: %w", err)
	}
	if j.serving, err = pki.Pair(j.Serving, i.key); err != nil {
		return nil, fmt.Errorf("the serving certificate that the server issued: %w", err)
	}
	j.renewal = pki.Renewal(j.client.Leaf)
	if r := pki.Renewal(j.serving.Leaf); r.Before(j.renewal) {
		j.renewal = r
	}
	connect, quiet := connectPatience, silence
	if len(i.servers.Addresses()) > 1 {
		connect, quiet = connectShort, silenceShort
	}
	j.transport = &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: j.trusted, Certificates: []tls.Certificate{j.client}},
		Proxy:           http.ProxyFromEnvironment,
		DialContext:     i.servers.DialContext, TLSHandshakeTimeout: connect, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 25,
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: quiet, PingTimeout: quiet / 2},
	}
	return j, nil
}

// unreachableError is the error for a server that does not respond.
type unreachableError struct {
	host string
	err  error
}

func (u *unreachableError) Error() string {
	return fmt.Sprintf("no server answers at %s (%s): check --join, and that the port is open", u.host, u.err)
}

func (u *unreachableError) Unwrap() error { return u.err }

func (i *identity) exchange(ctx context.Context, trust *tls.Config, method, path, token string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+i.servers.Current()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: trust, DialContext: i.servers.DialContext, TLSHandshakeTimeout: connectPatience}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: i.servers.Transport(transport)}).Do(request)
	var unreachable *net.OpError
	if errors.As(err, &unreachable) {
		return nil, &unreachableError{strings.Join(i.servers.Addresses(), ", "), unreachable.Err}
	}
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := bounded.All(answer.Body, maxJoinAnswer)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = &refusal{answer.StatusCode, strings.TrimSpace(string(text))}
	}
	return text, err
}

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// enter makes the machine a member of the cluster: by a renewal if it has joined before, else with the token.
func (i *identity) enter(ctx context.Context) error {
	kept, err := i.load()
	if err == nil && kept == nil {
		err = errors.New("this machine has not joined the cluster yet: pass a join token, created with `coracle token " +
			"create` on the server")
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

// enterOrResume calls enter. If no server answers, a machine whose certificates are still valid resumes with the
// servers' last response, because its static pods need no server.
func (i *identity) enterOrResume(ctx context.Context) error {
	err := i.enter(ctx)
	if err == nil || ctx.Err() != nil || decided(err) {
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
	i.resumed = true
	i.log.Warn("could not renew node certificates, resuming as the node that this machine was", "error", err)
	return nil
}

// decided reports whether an error is a verdict on this machine. Other errors mean that no server is reachable,
// that a proxy has no backend, or that the servers have no quorum.
func decided(err error) bool {
	if r, ok := errors.AsType[*refusal](err); ok {
		return slices.Contains([]int{
			http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity,
		}, r.code)
	}
	return errors.As(err, new(*tls.CertificateVerificationError))
}

var errAnotherCluster = errors.New("this machine has joined the cluster of its token, which is another one than that " +
	"as whose node it resumed: it starts anew")

// joinsAnother joins the cluster of the answering server, if the machine resumed as a node of a different cluster
// and its token is for the answering one. Otherwise the machine keeps waiting for a server of its own cluster.
func (i *identity) joinsAnother(ctx context.Context, err error) bool {
	if !i.resumed || i.token == "" || !errors.As(err, new(x509.UnknownAuthorityError)) {
		return false
	}
	if err := i.join(ctx); err != nil {
		i.log.Warn("could not join the cluster of the server that answers", "error", err)
		return false
	}
	return true
}

// load reads the credentials on disk, or returns nil if there are none.
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
	// The hash in the token verifies the server before the token is sent.
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

func (i *identity) renew(ctx context.Context, c credentials) error {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	err := i.ask(ctx, &tls.Config{
		RootCAs:              c.trusted,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.client, nil },
	}, renewPath, "")
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		err = fmt.Errorf("the server does not belong to the cluster that this machine has joined, or its authorities were "+
			"replaced while this machine was away (%w): "+
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

// take makes the response to a join or renewal the current identity and saves it.
func (i *identity) take(answer []byte) error {
	j, err := i.parse(answer)
	if err != nil {
		return err
	}
	i.present.Store(j)
	if err := errors.Join(atomicfile.WriteDurably(filepath.Join(i.dir, serverAuthority), j.ServerCA),
		atomicfile.WriteDurably(filepath.Join(i.dir, machineCertificate), j.Client),
		atomicfile.WriteDurably(filepath.Join(i.dir, lastAnswer), answer)); err != nil {
		i.log.Warn("could not save machine certificate, the next start may need a join token", "error", err)
	}
	return nil
}

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
		TLSClientConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			RootCAs:      j.trusted,
			Certificates: []tls.Certificate{j.client},
		},
		Proxy:       http.ProxyFromEnvironment,
		DialContext: i.servers.DialContext, TLSHandshakeTimeout: connect, IdleConnTimeout: 90 * time.Second,
		MaxIdleConnsPerHost: 25,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: quiet, PingTimeout: quiet / 2},
	}
	return j, nil
}

type unreachableError struct {
	host string
	err  error
}

func (u *unreachableError) Error() string {
	return fmt.Sprintf("no server answers at %s (%s): check --join, and that the port is open", u.host, u.err)
}

func (u *unreachableError) Unwrap() error { return u.err }

func (i *identity) exchange(ctx context.Context, trust *tls.Config, method, path, token string,
	body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+i.servers.Current()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{
		TLSClientConfig:     trust,
		DialContext:         i.servers.DialContext,
		TLSHandshakeTimeout: connectPatience,
	}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: i.servers.Transport(transport)}).Do(request)
	if unreachable, ok := errors.AsType[*net.OpError](err); ok {
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

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client/servers"
)

const (
	joinPatience = 30 * time.Second
	// connectPatience is the timeout for connecting. A connection that has been idle for silence is pinged, and
	// closed if no answer comes for half as long. The sum leaves time to renew the node's lease over another
	// connection before the node counts as lost.
	connectPatience = 10 * time.Second
	silence         = 10 * time.Second
	// connectShort and silenceShort apply instead if there are other servers to try. A connection made while there
	// was one server keeps the longer timeouts until the next renewal or start.
	connectShort = 3 * time.Second
	silenceShort = 2 * time.Second
	// renewalRetry is the minimum interval between renewals: after a failed one, or if the server's clock is so far
	// behind that its certificates are due for renewal at once.
	renewalRetry = 5 * time.Minute
	// followPause is the minimum interval between renewals due to changed CAs. It doubles with each failed renewal,
	// up to renewalRetry.
	followPause = 5 * time.Second
	// clockCheck is the longest single wait for a renewal: while the machine is suspended, the clock continues but
	// timers stop.
	clockCheck = time.Hour
	// maxJoinAnswer and maxIdentityFile are in bytes.
	maxJoinAnswer   = 1 << 20
	maxIdentityFile = 1 << 20
)

// identity is a joined machine's membership in its cluster: a key, which never leaves the machine, and the
// certificates that the server issued for it. Key, client certificate and the server's CA are on disk, so that the
// machine needs a token only once. As a component it renews the certificates; as a transport it sends the machine's
// requests to the API.
type identity struct {
	servers          *servers.List
	nodeName, nodeIP string
	token            string // empty if the machine has joined before
	dir              string // directory of the files below
	key              *ecdsa.PrivateKey
	log              *slog.Logger
	resumed          bool // no server has answered this process yet; set before Run, which clears it
	// excluded is called when the server has removed the machine from the cluster, before Run returns.
	excluded func(context.Context)

	present atomic.Pointer[joined]
	refused chan struct{} // receives when authentication failed on either side
	changed chan struct{} // receives when the server's CAs have changed
	run.Readiness
}

// The files of an identity besides the key.
const (
	machineCertificate = "machine.crt"
	serverAuthority    = "cluster-ca.crt"
	lastAnswer         = "membership.json" // the servers' last response to a join or renewal, without a key
)

var (
	_ run.Component     = (*identity)(nil)
	_ http.RoundTripper = (*identity)(nil)
)

// credentials are the client certificate of a machine and the CAs that verify the API's certificate.
type credentials struct {
	trusted *x509.CertPool
	client  tls.Certificate
}

// joined is the result of a join or renewal. It is immutable.
type joined struct {
	joinAnswer
	credentials
	serving   tls.Certificate
	clients   *x509.CertPool // from joinAnswer.ClientCA
	transport *http.Transport
	renewal   time.Time
}

type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

// shutOut reports whether a renewal failed because the machine is no longer a member. It can only join again.
func shutOut(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.code == http.StatusForbidden
}

func (i *identity) Name() string { return "identity" }

// Run renews the certificates when they are due, when they are refused, or when the cluster's CAs change, until ctx
// is done. Expired certificates can be renewed too, as after a long suspension. Run fails if the machine has lost
// its membership, or if it resumed as a node of one cluster and has now joined another.
func (i *identity) Run(ctx context.Context) error {
	i.SetReady()
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
				i.excluded(ctx)
				return err
			}
			if i.joinsAnother(ctx, err) {
				return errAnotherCluster
			}
			if ctx.Err() == nil {
				i.log.Warn("could not renew node certificates, retrying", "after", renewalRetry, "until", old.serving.Leaf.NotAfter,
					"error", err)
			}
			continue
		}
		failures, i.resumed = 0, false
		for _, before := range []chan struct{}{i.refused, i.changed} {
			select {
			case <-before:
			default:
			}
		}
		// Watches stay on existing connections, which close once idle.
		old.transport.CloseIdleConnections()
		i.log.Info("renewed node certificates", "until", i.present.Load().serving.Leaf.NotAfter)
	}
}

// followAfter returns the pause between a renewal and the next one due to changed CAs. It is short at first, since
// a server killed while it replaced its CAs may be back a moment later.
func followAfter(failures int) time.Duration {
	return min(followPause<<min(failures, 10), renewalRetry)
}

// RoundTrip implements http.RoundTripper. It uses the current certificate: connections with an earlier one get no
// new requests.
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
	case err != nil && errors.As(err, new(x509.UnknownAuthorityError)),
		err == nil && answer.StatusCode == http.StatusUnauthorized:
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

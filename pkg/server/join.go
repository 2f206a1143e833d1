package server

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// Paths for joining, beside the Kubernetes API. The CA is public, a join needs a token, and a renewal needs the
// certificate to renew.
const (
	authorityPath = "/coracle/authority"
	joinPath      = "/coracle/join"
	renewPath     = "/coracle/renew"
	// maxJoinBody is the maximum size of a request in bytes, joinBodyTime the timeout for reading it, and mostJoins the
	// maximum in progress.
	maxJoinBody  = 16 << 10
	joinBodyTime = 10 * time.Second
	mostJoins    = 16
)

// joinRequest requests a node's client and serving certificates. Both are for the machine's permanent public key,
// to whose hash the node's name is bound. The request does not prove possession of the private key; each use of a
// certificate does.
type joinRequest struct {
	NodeName  string `json:"nodeName"`
	NodeIP    string `json:"nodeIP"`
	PublicKey []byte `json:"publicKey"` // PKIX, DER
}

// joinAnswer has what a node needs to join. Certificates are in PEM.
type joinAnswer struct {
	Client        []byte `json:"client"`
	Serving       []byte `json:"serving"`
	ClientCA      []byte `json:"clientCA"` // trusted by the node's own API; several certificates during a replacement
	ServerCA      []byte `json:"serverCA"` // verifies the API's certificate; several certificates during a replacement
	ClusterCIDR   string `json:"clusterCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	ClusterDomain string `json:"clusterDomain"`
	// Version is the version of the CAs, which the node sends with its requests.
	Version string `json:"version"`
}

// joiner admits machines to the cluster and renews their certificates.
type joiner struct {
	keys    *pki.Set
	cluster joinAnswer
	members *members
	// token checks a join token. It returns jointoken.ErrRefused for an invalid token, or another error if it could
	// not check.
	token func(ctx context.Context, token string) error
	// node returns the Node with that name, or nil if there is none.
	node func(ctx context.Context, name string) (*corev1.Node, error)
	// own returns the name of this machine's node, which is reserved even before the node is registered. It is
	// empty without a node.
	own func() string
	// life is the lifetime of the certificates; 0 means one year.
	life time.Duration

	attempts attempts
}

type httpError struct {
	code int
	error
}

// handler serves the join endpoints and passes other requests to next.
func (j *joiner) handler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+authorityPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(j.keys.Server.Bundle())
	})
	slots := make(chan struct{}, mostJoins)
	serve := func(path string, believe func(*http.Request) error,
		answer func(*http.Request, joinRequest) (joinAnswer, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			given, err := j.serve(w, r, slots, believe, answer)
			if err != nil {
				code := http.StatusInternalServerError
				if coded, ok := errors.AsType[httpError](err); ok {
					code = coded.code
				}
				if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
					w.Header().Set("Retry-After", "5")
				}
				http.Error(w, err.Error(), code)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(given)
		})
	}
	serve(joinPath, j.believeToken, j.join)
	serve(renewPath, j.believeCertificate, j.renew)
	mux.Handle("/", next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux cleans paths and responds with 405 on its own, so requests for the API must bypass it.
		if strings.HasPrefix(r.URL.Path, "/coracle/") {
			mux.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serve authenticates the sender before it takes a slot and reads the body, so that strangers cannot use up the slots.
func (j *joiner) serve(w http.ResponseWriter, r *http.Request, slots chan struct{}, believe func(*http.Request) error,
	answer func(*http.Request, joinRequest) (joinAnswer, error)) (joinAnswer, error) {
	if err := believe(r); err != nil {
		return joinAnswer{}, err
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return joinAnswer{}, httpError{
			http.StatusServiceUnavailable, errors.New("too many machines join at once: try again later"),
		}
	}
	// The ResponseWriter of some tests does not support deadlines.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(joinBodyTime))
	body, err := bounded.All(r.Body, maxJoinBody)
	if err != nil {
		return joinAnswer{}, httpError{http.StatusBadRequest, fmt.Errorf("join request: %w", err)}
	}
	ask, err := parseJoinRequest(body)
	if err != nil {
		return joinAnswer{}, err
	}
	return answer(r, ask)
}

func parseJoinRequest(body []byte) (ask joinRequest, err error) {
	if err := json.Unmarshal(body, &ask); err != nil {
		return ask, httpError{http.StatusBadRequest, fmt.Errorf("join request: %w", err)}
	}
	if _, err := ask.check(); err != nil {
		return ask, httpError{http.StatusUnprocessableEntity, err}
	}
	return ask, nil
}

func (r joinRequest) check() (*ecdsa.PublicKey, error) {
	if bad := validation.IsDNS1123Subdomain(r.NodeName); len(bad) > 0 {
		return nil, fmt.Errorf("nodeName %q: %s", r.NodeName, bad[0])
	}
	if a, err := netip.ParseAddr(r.NodeIP); err != nil || a.Zone() != "" {
		return nil, fmt.Errorf("nodeIP %q is not an IP address", r.NodeIP)
	}
	public, err := x509.ParsePKIXPublicKey(r.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("publicKey: %w", err)
	}
	key, ok := public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("publicKey is not one of ECDSA on P-256")
	}
	return key, nil
}

// believeToken limits the attempts with wrong tokens by address. Renewals have no such limit: a certificate cannot be
// guessed, and a node shares its address with its pods, which could keep it from ever renewing.
func (j *joiner) believeToken(r *http.Request) error {
	from := sender(r.RemoteAddr)
	if !j.attempts.allowed(from, time.Now()) {
		return httpError{
			http.StatusTooManyRequests, errors.New("too many attempts to join from this address were refused: try again later"),
		}
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	err := j.token(r.Context(), token)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jointoken.ErrRefused):
		j.attempts.failed(from, time.Now())
		return httpError{http.StatusUnauthorized, err}
	}
	return httpError{http.StatusServiceUnavailable, fmt.Errorf("cannot check the join token: %w", err)}
}

func (j *joiner) join(r *http.Request, ask joinRequest) (joinAnswer, error) {
	public, err := ask.check()
	if err != nil {
		return joinAnswer{}, err
	}
	machine, err := pki.Identity(public)
	if err != nil {
		return joinAnswer{}, err
	}
	if ask.NodeName == j.own() {
		return joinAnswer{}, httpError{http.StatusForbidden, ownedByOther(ask.NodeName)}
	}
	node, err := j.find(r.Context(), ask.NodeName)
	if err != nil {
		return joinAnswer{}, err
	}
	if node != nil && !mine(node, machine) {
		return joinAnswer{}, httpError{http.StatusForbidden, ownedByOther(ask.NodeName)}
	}
	if node == nil || owner(node) == "" {
		if err := j.members.admit(ask.NodeName, machine, time.Now()); err != nil {
			return joinAnswer{}, httpError{http.StatusServiceUnavailable, err}
		}
	}
	return j.issue(ask, public, []net.IP{net.ParseIP(ask.NodeIP)}) // the token proves the right to the address
}

func (j *joiner) find(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := j.node(ctx, name)
	if err != nil {
		return nil, httpError{
			http.StatusServiceUnavailable, fmt.Errorf("cannot determine the owner of the node name: %w", err),
		}
	}
	return node, nil
}

// believeCertificate accepts a node certificate issued by the cluster, even an expired one: a machine may have been
// off for a long time. The TLS handshake has proved possession of the key.
func (j *joiner) believeCertificate(r *http.Request) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return httpError{http.StatusUnauthorized, errors.New("a renewal needs the certificate that is to be renewed")}
	}
	cert := r.TLS.PeerCertificates[0]
	at := time.Now()
	if cert.NotAfter.Before(at) {
		at = cert.NotAfter
	}
	_, err := cert.Verify(x509.VerifyOptions{
		Roots:       j.keys.Client.Pool(),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		CurrentTime: at,
	})
	if err == nil && !slices.Contains(cert.Subject.Organization, nodesGroup) {
		err = errors.New("it is not a node's")
	}
	if err != nil {
		return httpError{http.StatusUnauthorized, fmt.Errorf("the certificate that is to be renewed: %w", err)}
	}
	return nil
}

// renew issues certificates to the machine that owns the node.
func (j *joiner) renew(r *http.Request, ask joinRequest) (joinAnswer, error) {
	public, err := ask.check()
	if err != nil {
		return joinAnswer{}, err
	}
	cert := r.TLS.PeerCertificates[0]
	if nodeUser(ask.NodeName) != cert.Subject.CommonName || !public.Equal(cert.PublicKey) {
		return joinAnswer{}, httpError{
			http.StatusForbidden,
			fmt.Errorf("this machine has joined as %s, with the key that it had then: to change either, delete that node and "+
				"join again with a token",
				strings.TrimPrefix(cert.Subject.CommonName, nodeUser(""))),
		}
	}
	node, err := j.find(r.Context(), ask.NodeName)
	if err != nil {
		return joinAnswer{}, err
	}
	if err := j.members.check(ask.NodeName, node, cert); err != nil {
		return joinAnswer{}, httpError{http.StatusForbidden, err}
	}
	ip := net.ParseIP(ask.NodeIP)
	if !proven(ip, r, node) {
		return joinAnswer{}, httpError{
			http.StatusForbidden,
			fmt.Errorf("node %s: this machine neither joined with the address %s nor connects from it: start the agent with a "+
				"join token, or with the --node-ip from which it reaches the server", ask.NodeName, ip),
		}
	}
	return j.issue(ask, public, []net.IP{ip})
}

// proven reports whether a machine that renews may use the address ip: its certificate or its Node has the address,
// or the machine connects from it. Otherwise a node could take over another machine's address and its traffic.
func proven(ip net.IP, r *http.Request, node *corev1.Node) bool {
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	return ip.Equal(net.ParseIP(from)) || slices.ContainsFunc(r.TLS.PeerCertificates[0].IPAddresses, ip.Equal) ||
		node != nil && slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
			return ip.Equal(net.ParseIP(a.Address))
		})
}

// issue signs the certificates, the client certificate with the node's proven addresses.
func (j *joiner) issue(ask joinRequest, public crypto.PublicKey, addresses []net.IP) (answer joinAnswer, err error) {
	answer, user := j.cluster, nodeUser(ask.NodeName)
	// Read the version first: if the CAs change in between, the node renews again.
	answer.Version = j.keys.Version()
	answer.ClientCA, answer.ServerCA = j.keys.Client.Bundle(), j.keys.Server.Bundle()
	if answer.Client, err = j.keys.Client.Sign(pki.Leaf{
		Name: user, Groups: []string{nodesGroup}, Addresses: addresses, Life: j.life,
	}, public); err != nil {
		return answer, err
	}
	answer.Serving, err = j.keys.Node.Sign(pki.Leaf{
		Name:  user,
		Hosts: []string{ask.NodeName, ask.NodeIP, "127.0.0.1"},
		Life:  j.life,
	}, public)
	return answer, err
}

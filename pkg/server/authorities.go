package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

const (
	// versionHeader carries a version of the CAs (pki.Set.Version): the client's in requests, the server's in
	// responses. A node renews its lease every ten seconds, so it notices a change within that time.
	versionHeader = "Coracle-Authorities"
	// recently is how long after its last request a client certificate counts as in use.
	recently = time.Hour
	// mostOldCertificates limits the certificates recorded as in use.
	mostOldCertificates = 1024
	// mostListed limits the nodes and certificates named in an error.
	mostListed = 20
)

// authorities replaces the cluster's CAs at run time and records which clients still depend on replaced CAs. The
// record is in memory: after a start of the server, a node counts as behind until its first request.
type authorities struct {
	keys   *pki.Set
	client ctrl.Reader
	log    *slog.Logger
	// changed are called after each change of the CAs. Their errors are logged and do not undo the change.
	changed []func() error

	change  sync.Mutex // serializes changes
	present atomic.Pointer[trusted]

	mu    sync.Mutex
	nodes map[string]string           // CA version of each node, by name
	old   map[[sha256.Size]byte]inUse // client certificates in use that a replaced CA issued
}

// trusted is the part of the CAs' state that each request reads.
type trusted struct {
	version   string
	replacing bool
}

type inUse struct {
	name string
	last time.Time
}

func newAuthorities(keys *pki.Set, c ctrl.Reader, log *slog.Logger) *authorities {
	a := &authorities{keys: keys, client: c, log: log, nodes: map[string]string{}, old: map[[sha256.Size]byte]inUse{}}
	a.look()
	return a
}

func (a *authorities) look() {
	a.present.Store(&trusted{a.keys.Version(), slices.ContainsFunc(a.keys.Authorities(), (*pki.Authority).Replacing)})
}

// handler sends the CAs' version to nodes in a response header and, during a replacement, records which clients
// still depend on replaced CAs.
func (a *authorities) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			cert, now := r.TLS.PeerCertificates[0], a.present.Load()
			name, node := strings.CutPrefix(cert.Subject.CommonName, nodeUser(""))
			if node {
				w.Header().Set(versionHeader, now.version)
			}
			if now.replacing {
				a.saw(cert, name, node, r.Header.Get(versionHeader), time.Now())
			}
		}
		next.ServeHTTP(w, r)
	})
}

// saw records a client's certificate and, for a node, the CA version that it has.
func (a *authorities) saw(cert *x509.Certificate, name string, node bool, version string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if node {
		if has, known := a.nodes[name]; known && has == version || len(version) > len(a.present.Load().version) {
			return
		}
		if byPresent, byOld := a.keys.Client.Signed(cert); byPresent || byOld {
			a.nodes[name] = version
		}
		return
	}
	key := sha256.Sum256(cert.Raw)
	if _, known := a.old[key]; !known {
		if _, byOld := a.keys.Client.Signed(cert); !byOld {
			return
		}
		if len(a.old) >= mostOldCertificates {
			maps.DeleteFunc(a.old, func(_ [sha256.Size]byte, u inUse) bool { return now.Sub(u.last) > recently })
		}
		if len(a.old) >= mostOldCertificates {
			return
		}
	}
	a.old[key] = inUse{name, now}
}

func (a *authorities) forget(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.nodes, node)
}

// state returns the state of the CAs and, during a replacement, the clients that still depend on replaced CAs.
func (a *authorities) state(ctx context.Context, now time.Time) (socket.Authorities, error) {
	var s socket.Authorities
	var since time.Time // start of the API CA's replacement, if in progress
	for _, authority := range a.keys.Authorities() {
		cert, old := authority.Certificates()
		one := socket.Authority{Name: authority.Name, Until: cert.NotAfter}
		if old != nil {
			one.Replaces, s.Replacing = &socket.Authority{Name: authority.Name, Until: old.NotAfter}, true
			if authority == a.keys.Server {
				since = authority.Replaced()
			}
		}
		s.List = append(s.List, one)
	}
	if !s.Replacing {
		return s, nil
	}
	var nodes corev1.NodeList
	if err := a.client.List(ctx, &nodes); err != nil {
		return s, fmt.Errorf("cannot list nodes: %w", err)
	}
	if !since.IsZero() {
		var pods corev1.PodList
		if err := a.client.List(ctx, &pods); err != nil {
			return s, fmt.Errorf("cannot list pods: %w", err)
		}
		for i := range pods.Items {
			if readBefore(&pods.Items[i], since) {
				s.Pods++
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	version := a.present.Load().version
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if o := owner(node); o == "" || o == a.keys.Machine {
			continue
		}
		switch has, heard := a.nodes[node.Name]; {
		case !heard:
			s.Behind = append(s.Behind, socket.Behind{
				Node: node.Name, Problem: "has not been heard of since the replacement began or the server started",
			})
		case has != version:
			s.Behind = append(s.Behind, socket.Behind{Node: node.Name, Problem: "has not renewed its certificates yet"})
		}
	}
	for _, u := range a.old {
		if ago := now.Sub(u.last); ago < recently {
			last := u.last
			s.Behind = append(s.Behind, socket.Behind{
				User:    u.name,
				Last:    &last,
				Problem: "sends requests with a client certificate of the old authority",
			})
		}
	}
	slices.SortFunc(s.Behind, func(x, y socket.Behind) int {
		return strings.Compare(x.Node+"\x00"+x.User, y.Node+"\x00"+y.User)
	})
	return s, nil
}

// readBefore reports whether a running pod with a service account token started before the API's CA was replaced at
// t, so that it may not have read the new CA.
func readBefore(pod *corev1.Pod, t time.Time) bool {
	if pod.Status.StartTime == nil || !pod.Status.StartTime.Time.Before(t) || pod.Status.Phase != corev1.PodRunning {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil &&
			slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
				return p.ServiceAccountToken != nil
			})
	})
}

func (a *authorities) pick(names []string) ([]*pki.Authority, error) {
	all := a.keys.Authorities()
	if len(names) == 0 {
		return all, nil
	}
	var picked []*pki.Authority
	for _, name := range names {
		i := slices.IndexFunc(all, func(a *pki.Authority) bool { return a.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown authority %q: there are server, client and node", name)
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

// replace starts replacing the named CAs; no names means all.
func (a *authorities) replace(ctx context.Context, names []string) (socket.Authorities, error) {
	a.change.Lock()
	defer a.change.Unlock()
	picked, err := a.pick(names)
	if err != nil {
		return socket.Authorities{}, err
	}
	picked = slices.DeleteFunc(picked, (*pki.Authority).Replacing)
	if len(picked) == 0 {
		return socket.Authorities{}, errors.New("a replacement is in progress already: `coracle certs check` shows its " +
			"progress, `coracle certs rotate --ca --finish` finishes it")
	}
	for _, authority := range picked {
		if err = a.keys.Replace(authority); err != nil {
			err = fmt.Errorf("could not replace the %s authority: %w", authority.Name, err)
			break
		}
		a.log.Info("replaced a certificate authority, the old one is trusted until the replacement is finished", "authority",
			authority.Name)
	}
	a.follow()
	if err != nil {
		return socket.Authorities{}, err
	}
	return a.state(ctx, time.Now())
}

// finish completes the replacement of the named CAs. Without force it fails while clients depend on a replaced CA.
func (a *authorities) finish(ctx context.Context, names []string, force bool) (socket.Authorities, error) {
	a.change.Lock()
	defer a.change.Unlock()
	picked, err := a.pick(names)
	if err != nil {
		return socket.Authorities{}, err
	}
	picked = slices.DeleteFunc(picked, func(a *pki.Authority) bool { return !a.Replacing() })
	if len(picked) == 0 {
		return socket.Authorities{}, errors.New("no authority is being replaced: `coracle certs rotate --ca` begins it")
	}
	before, err := a.state(ctx, time.Now())
	if err != nil && !force {
		return before, err
	}
	if len(before.Behind) > 0 && !force {
		return before, stillBehind(before.Behind)
	}
	for _, authority := range picked {
		if err = a.keys.Finish(authority); err != nil {
			err = fmt.Errorf("could not finish the replacement of the %s authority: %w", authority.Name, err)
			break
		}
		a.log.Info("finished the replacement of a certificate authority, the old one is no longer trusted", "authority",
			authority.Name)
	}
	a.follow()
	if err != nil {
		return before, err
	}
	after, err := a.state(ctx, time.Now())
	after.Pods = before.Pods
	return after, err
}

func stillBehind(behind []socket.Behind) error {
	var text strings.Builder
	text.WriteString("the old authorities are still in use:\n")
	for _, b := range behind[:min(len(behind), mostListed)] {
		fmt.Fprintf(&text, "  %s\n", b)
	}
	if more := len(behind) - mostListed; more > 0 {
		fmt.Fprintf(&text, "  and %d more\n", more)
	}
	text.WriteString("Try again when they have followed, or use --force: nodes that were shut out join again with a " +
		"token, and users get a new kubeconfig")
	return errors.New(text.String())
}

func (a *authorities) follow() {
	a.look()
	if !a.present.Load().replacing {
		a.mu.Lock()
		clear(a.nodes)
		clear(a.old)
		a.mu.Unlock()
	}
	for _, f := range a.changed {
		if err := f(); err != nil {
			a.log.Warn("could not apply a change of the certificate authorities until the next start of the server", "error",
				err)
		}
	}
}

var errNodeAlone = errors.New("this process runs only a node: run the command on the server")

func (p *process) Authorities(ctx context.Context) (socket.Authorities, error) {
	if p.authorities == nil {
		return socket.Authorities{}, errNodeAlone
	}
	return p.authorities.state(ctx, time.Now())
}

func (p *process) ReplaceAuthorities(ctx context.Context, names []string) (socket.Authorities, error) {
	if p.authorities == nil {
		return socket.Authorities{}, errNodeAlone
	}
	return p.authorities.replace(ctx, names)
}

func (p *process) FinishAuthorities(ctx context.Context, names []string, force bool) (socket.Authorities, error) {
	if p.authorities == nil {
		return socket.Authorities{}, errNodeAlone
	}
	return p.authorities.finish(ctx, names, force)
}

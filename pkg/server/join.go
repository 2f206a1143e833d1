package server

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-dev/coracle/pkg/pki"
)

// The two paths of joining, beside the Kubernetes API. The authority is public; a join needs the token.
const (
	authorityPath = "/coracle/authority"
	joinPath      = "/coracle/join"
	maxJoinBody   = 64 << 10
)

// joinRequest asks for a node's two certificates, both for the one public key, which is the machine's for ever: its hash
// is what the node's name is bound to. That the asker has the private key is not proved here, but whenever a
// certificate is used; without it they are worth nothing.
type joinRequest struct {
	NodeName  string `json:"nodeName"`
	NodeIP    string `json:"nodeIP"`
	PublicKey []byte `json:"publicKey"` // PKIX, DER
}

// joinAnswer is what a node needs to take part. Certificates are PEM.
type joinAnswer struct {
	Client        []byte `json:"client"`
	Serving       []byte `json:"serving"`
	ClientCA      []byte `json:"clientCA"` // whom the node's own API trusts
	ClusterCIDR   string `json:"clusterCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	ClusterDomain string `json:"clusterDomain"`
}

// joiner admits machines to the cluster.
type joiner struct {
	keys    *pki.Set
	cluster joinAnswer
	// node gives the Node that has the name; nil if there is none.
	node func(ctx context.Context, name string) (*corev1.Node, error)
	// own is the name of this machine's node, which is nobody else's, even before it is registered; empty without one.
	own func() string
	// life of the certificates; 0 is one year.
	life time.Duration
}

// handler answers the two paths and passes all else on.
func (j *joiner) handler(next http.Handler) http.Handler {
	keys := j.keys
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+authorityPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(keys.Server.PEM)
	})
	mux.HandleFunc("POST "+joinPath, func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !keys.CheckToken(token) {
			http.Error(w, "the join token is not this cluster's: `coracle status` shows it on the server", http.StatusUnauthorized)
			return
		}
		var ask joinRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJoinBody)).Decode(&ask); err != nil {
			http.Error(w, "join request: "+err.Error(), http.StatusBadRequest)
			return
		}
		public, err := ask.check()
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		taken, err := j.taken(r.Context(), ask.NodeName, public)
		if err != nil {
			http.Error(w, "cannot tell whose the node name is: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		if taken != nil {
			http.Error(w, taken.Error(), http.StatusForbidden)
			return
		}
		answer, err := j.admit(ask, public)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
	mux.Handle("/", next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux cleans paths and answers 405 by itself; the API behind it wants to do both its own way.
		if strings.HasPrefix(r.URL.Path, "/coracle/") {
			mux.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check says what is wrong with a request, and gives its key.
func (r joinRequest) check() (crypto.PublicKey, error) {
	if bad := validation.IsDNS1123Subdomain(r.NodeName); len(bad) > 0 {
		return nil, fmt.Errorf("nodeName %q: %s", r.NodeName, bad[0])
	}
	if _, err := netip.ParseAddr(r.NodeIP); err != nil {
		return nil, fmt.Errorf("nodeIP %q is not an IP address", r.NodeIP)
	}
	public, err := x509.ParsePKIXPublicKey(r.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("publicKey: %w", err)
	}
	return public, nil
}

// taken says why the machine with this key cannot have the name.
func (j *joiner) taken(ctx context.Context, name string, public crypto.PublicKey) (taken, err error) {
	if name == j.own() {
		return ownedByOther(name), nil
	}
	machine, err := pki.Identity(public)
	if err != nil {
		return nil, err
	}
	node, err := j.node(ctx, name)
	if err != nil || node == nil || mine(node, machine) {
		return nil, err
	}
	return ownedByOther(name), nil
}

// admit issues the certificates.
func (j *joiner) admit(ask joinRequest, public crypto.PublicKey) (answer joinAnswer, err error) {
	answer, user := j.cluster, nodeUser(ask.NodeName)
	answer.ClientCA = j.keys.Client.PEM
	if answer.Client, err = j.keys.Client.Sign(pki.Leaf{Name: user, Groups: []string{nodesGroup}, Life: j.life}, public); err != nil {
		return answer, err
	}
	answer.Serving, err = j.keys.Node.Sign(pki.Leaf{Name: user, Hosts: []string{ask.NodeName, ask.NodeIP, "127.0.0.1"}, Life: j.life}, public)
	return answer, err
}

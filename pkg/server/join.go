package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coracle-dev/coracle/pkg/pki"
)

// The two paths of joining, beside the Kubernetes API. The authority is public; a join needs the token.
const (
	authorityPath = "/coracle/authority"
	joinPath      = "/coracle/join"
	maxJoinBody   = 64 << 10
)

// joinRequest asks for a node's two certificates, both for the one public key.
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

// joining answers the two paths and passes all else on.
func joining(keys *pki.Set, cluster joinAnswer, next http.Handler) http.Handler {
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
		answer, err := admit(keys, cluster, ask)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
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

func admit(keys *pki.Set, answer joinAnswer, ask joinRequest) (joinAnswer, error) {
	if bad := validation.IsDNS1123Subdomain(ask.NodeName); len(bad) > 0 {
		return answer, fmt.Errorf("nodeName %q: %s", ask.NodeName, bad[0])
	}
	if _, err := netip.ParseAddr(ask.NodeIP); err != nil {
		return answer, fmt.Errorf("nodeIP %q is not an IP address", ask.NodeIP)
	}
	public, err := x509.ParsePKIXPublicKey(ask.PublicKey)
	if err != nil {
		return answer, fmt.Errorf("publicKey: %w", err)
	}
	user := nodeUser(ask.NodeName)
	answer.Client, err = keys.Client.Sign(pki.Leaf{Name: user, Groups: []string{nodesGroup}}, public)
	if err != nil {
		return answer, err
	}
	answer.Serving, err = keys.Server.Sign(pki.Leaf{Name: user, Hosts: []string{ask.NodeName, ask.NodeIP, "127.0.0.1"}}, public)
	answer.ClientCA = keys.Client.PEM
	return answer, err
}

// joined is a node's identity, as a join gave it. Certificates and key are PEM.
type joined struct {
	joinAnswer
	serverCA, key []byte
	serving       tls.Certificate
}

// join fetches the server's authority, checks it against the token, and asks for certificates. The key never leaves the node.
func join(ctx context.Context, url, token, nodeName, nodeIP string) (*joined, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	// Whoever answers is checked against the hash in the token before the token is said.
	authority, err := exchange(ctx, &tls.Config{InsecureSkipVerify: true}, http.MethodGet, url+authorityPath, "", nil)
	if err != nil {
		return nil, err
	}
	trusted, err := pki.VerifyAuthority(token, authority)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	j := &joined{serverCA: authority}
	j.key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	ask, err := json.Marshal(joinRequest{nodeName, nodeIP, public})
	if err != nil {
		return nil, err
	}
	answer, err := exchange(ctx, &tls.Config{RootCAs: trusted}, http.MethodPost, url+joinPath, strings.TrimSpace(token), ask)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(answer, &j.joinAnswer); err != nil {
		return nil, fmt.Errorf("the server's answer to the join: %w", err)
	}
	j.serving, err = tls.X509KeyPair(j.Serving, j.key)
	return j, err
}

func exchange(ctx context.Context, trust *tls.Config, method, url, token string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: trust}
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

// Package accesstest is an OpenID provider for tests that can misbehave. Its invariant: it never leaves the loopback
// interface, unless StartOn gets another listener.
package accesstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Provider is an OpenID provider.
type Provider struct {
	*httptest.Server
	// Asked counts requests for keys.
	Asked atomic.Int64
	// Misbehave, if set, responds instead of the provider.
	Misbehave atomic.Pointer[http.HandlerFunc]

	mu  sync.Mutex
	key *ecdsa.PrivateKey
	id  string
}

// Start starts a provider on the loopback interface until the test ends.
func Start(t testing.TB) *Provider {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return StartOn(t, l)
}

// StartOn is Start with a given listener, such as one in another network namespace.
func StartOn(t testing.TB, l net.Listener) *Provider {
	t.Helper()
	p := &Provider{}
	p.Rotate(t, "first")
	p.Server = &httptest.Server{
		Listener: l,
		Config: &http.Server{
			Handler:           http.HandlerFunc(p.serve),
			ReadHeaderTimeout: time.Minute,
			ErrorLog:          log.New(io.Discard, "", 0),
		},
	}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// CA returns the CA of the provider's certificate in PEM.
func (p *Provider) CA() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
}

// Rotate replaces the signing key.
func (p *Provider) Rotate(t testing.TB, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.id = key, id
}

func (p *Provider) serve(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/keys" {
		p.Asked.Add(1)
	}
	if h := p.Misbehave.Load(); h != nil {
		(*h)(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.Path {
	case "/.well-known/openid-configuration", "/elsewhere":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	case "/keys":
		p.mu.Lock()
		defer p.mu.Unlock()
		point, err := p.key.PublicKey.Bytes() // 0x04, X, Y
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]any{
			"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": p.id, "x": encode(point[1:33]),
			"y": encode(point[33:])}}})
	default:
		http.NotFound(w, req)
	}
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Token signs claims. It adds the issuer unless claims has one.
func (p *Provider) Token(t testing.TB, claims map[string]any) string {
	t.Helper()
	if _, ok := claims["iss"]; !ok {
		claims["iss"] = p.URL
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	header, err := json.Marshal(map[string]any{"alg": "ES256", "kid": p.id})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	text := encode(header) + "." + encode(payload)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, p.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + encode(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// Endless writes until the client disconnects.
func Endless(w http.ResponseWriter, _ *http.Request) {
	for {
		if _, err := io.WriteString(w, `{"keys":[`); err != nil {
			return
		}
	}
}

package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Now().Truncate(time.Second)

func authority(t *testing.T) *Authority {
	t.Helper()
	data, err := NewAuthority("farm", now)
	require.NoError(t, err)
	a, err := ParseAuthority(data, now)
	require.NoError(t, err)
	return a
}

var leaf = Leaf{
	Identity: "buildbarn://ns/farm/frontend",
	Hosts:    []string{"farm-frontend.ns", "*.farm-frontend.ns", "127.0.0.1", "::1"},
	Life:     3 * time.Hour,
	Token:    true,
}

func TestDue(t *testing.T) {
	a := authority(t)
	data, err := a.Issue(leaf, now)
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(2*time.Hour), a.Due(data, leaf), time.Second, "at two thirds")

	other, err := authority(t).Issue(leaf, now)
	require.NoError(t, err)
	plain := leaf
	plain.Token = false
	without, err := a.Issue(plain, now)
	require.NoError(t, err)
	for what, change := range map[string]func(map[string][]byte){
		"no certificate":         func(d map[string][]byte) { delete(d, Certificate) },
		"text for a key":         func(d map[string][]byte) { d[Key] = []byte("key") },
		"another's key":          func(d map[string][]byte) { d[Key] = other[Key] },
		"another's all":          func(d map[string][]byte) { maps.Copy(d, other) },
		"other authorities":      func(d map[string][]byte) { d[Authorities] = other[Authorities] },
		"no token":               func(d map[string][]byte) { delete(d, Token) },
		"another's token":        func(d map[string][]byte) { d[Token] = other[Token] },
		"text for a token":       func(d map[string][]byte) { d[Token] = []byte("a.b.c") },
		"a token that it lacks":  func(d map[string][]byte) { maps.Copy(d, without); delete(d, Token) },
		"a certificate and more": func(d map[string][]byte) { d[Certificate] = without[Certificate] },
	} {
		changed := maps.Clone(data)
		change(changed)
		require.Zero(t, a.Due(changed, leaf), what)
	}
	for what, change := range map[string]func(*Leaf){
		"identity": func(l *Leaf) { l.Identity = "buildbarn://ns/farm/worker" },
		"hosts":    func(l *Leaf) { l.Hosts = l.Hosts[1:] },
		"life":     func(l *Leaf) { l.Life = time.Hour },
		"token":    func(l *Leaf) { l.Token = false },
	} {
		changed := leaf
		change(&changed)
		require.Zero(t, a.Due(data, changed), what)
	}
}

func TestParseAuthority(t *testing.T) {
	data, err := NewAuthority("farm", now)
	require.NoError(t, err)
	other, err := NewAuthority("farm", now)
	require.NoError(t, err)
	a := authority(t)
	issued, err := a.Issue(leaf, now)
	require.NoError(t, err)
	for want, change := range map[string]func(map[string][]byte){
		"tls.crt: is not in PEM format":      func(d map[string][]byte) { delete(d, Certificate) },
		"tls.key: is not in PEM format":      func(d map[string][]byte) { d[Key] = nil },
		"token.key: is not in PEM format":    func(d map[string][]byte) { delete(d, TokenKey) },
		"tls.key does not belong to tls.crt": func(d map[string][]byte) { d[Key] = other[Key] },
		"tls.crt is not the certificate of an authority": func(d map[string][]byte) {
			d[Certificate], d[Key] = issued[Certificate], issued[Key]
		},
	} {
		changed := maps.Clone(data)
		change(changed)
		_, err := ParseAuthority(changed, now)
		require.EqualError(t, err, want)
	}
	_, err = ParseAuthority(data, now.AddDate(11, 0, 0))
	require.ErrorContains(t, err, "tls.crt has expired on ")
}

// TestHandshake: a server accepts a client with a certificate of its own farm, and refuses another farm's client.
func TestHandshake(t *testing.T) {
	a, b := authority(t), authority(t)
	config := func(a *Authority, l Leaf) *tls.Config {
		data, err := a.Issue(l, now)
		require.NoError(t, err)
		pair, err := tls.X509KeyPair(data[Certificate], data[Key])
		require.NoError(t, err)
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(data[Authorities]))
		return &tls.Config{
			Certificates: []tls.Certificate{pair},
			RootCAs:      pool,
			ClientCAs:    pool,
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ServerName:   "x.farm-frontend.ns",
		}
	}
	client := Leaf{Identity: "buildbarn://ns/farm/client", Life: time.Hour}
	shake := func(server, client *tls.Config) error {
		one, two := net.Pipe()
		defer one.Close()
		defer two.Close()
		served := make(chan error, 1)
		go func() {
			s := tls.Server(one, server)
			err := s.Handshake()
			if err != nil {
				_ = one.Close()
			}
			served <- err
		}()
		if err := tls.Client(two, client).Handshake(); err != nil {
			_ = two.Close()
			<-served
			return err
		}
		go func() { _, _ = two.Read(make([]byte, 1)) }()
		return <-served
	}
	require.NoError(t, shake(config(a, leaf), config(a, client)))
	require.ErrorContains(t, shake(config(a, leaf), config(b, client)), "certificate")
	require.ErrorContains(t, shake(config(a, client), config(a, client)), "certificate",
		"a client's certificate is none of a server")
}

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoadKeepsTheKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, err := Load(dir)
	require.NoError(t, err)
	second, err := Load(dir)
	require.NoError(t, err)
	require.Equal(t, first.Server.Bundle(), second.Server.Bundle())
	require.True(t, first.ServiceAccount.Equal(second.ServiceAccount))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), f.Name())
	}
}

func TestLoadRefusesWhatDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir)
	require.NoError(t, err)
	other := t.TempDir()
	_, err = Load(other)
	require.NoError(t, err)
	stolen, err := os.ReadFile(filepath.Join(other, "client-ca.crt"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "client-ca.crt"), stolen, 0o600))
	_, err = Load(dir)
	require.ErrorContains(t, err, "does not belong to the key")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "client-ca.crt"), nil, 0o600))
	_, err = Load(dir)
	require.ErrorContains(t, err, "has no certificate")
}

func TestMutualTLS(t *testing.T) {
	set, err := Load(t.TempDir())
	require.NoError(t, err)
	serving, err := set.Server.NewSource(Leaf{Name: "coracle", Hosts: []string{"127.0.0.1", "localhost"}})
	require.NoError(t, err)
	who, err := set.Client.NewSource(Leaf{Name: "alice", Groups: []string{"sailors"}})
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject := r.TLS.PeerCertificates[0].Subject
		_, _ = io.WriteString(w, subject.CommonName+" of "+subject.Organization[0])
	}))
	config := &tls.Config{
		GetCertificate: serving.Server,
		ClientCAs:      set.Client.Pool(),
		ClientAuth:     tls.RequireAndVerifyClientCert,
	}
	// httptest adds its own certificate, which would be used otherwise.
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config, nil }}
	server.StartTLS()
	defer server.Close()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: set.Server.Pool(), GetClientCertificate: who.Client},
	}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get(server.URL)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "alice of sailors", string(body))
}

func TestSourceIssuesAnewBeforeTheEnd(t *testing.T) {
	set, err := Load(t.TempDir())
	require.NoError(t, err)
	s, err := set.Server.NewSource(Leaf{Name: "x", Hosts: []string{"x"}, Life: 3 * time.Hour})
	require.NoError(t, err)
	now := time.Now()
	first, err := s.get(now)
	require.NoError(t, err)
	same, err := s.get(now.Add(time.Hour))
	require.NoError(t, err)
	require.Same(t, first, same)
	next, err := s.get(now.Add(2 * time.Hour))
	require.NoError(t, err)
	require.NotSame(t, first, next)
}

// TestBoardWithoutClock checks certificates of a machine whose clock jumps over decades, in both directions.
func TestBoardWithoutClock(t *testing.T) {
	today, err := Load(t.TempDir())
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) { // its clock begins in the year 2000
		early, err := Load(t.TempDir())
		require.NoError(t, err)
		for _, set := range []*Set{early, today} {
			s, err := set.Server.NewSource(Leaf{Name: "x", Hosts: []string{"x"}})
			require.NoError(t, err)
			verify := func(now time.Time) {
				t.Helper()
				c, err := s.get(now)
				require.NoError(t, err)
				_, err = c.Leaf.Verify(x509.VerifyOptions{Roots: set.Server.Pool(), CurrentTime: now})
				require.NoError(t, err)
			}
			verify(time.Now())
			time.Sleep(30 * 365 * 24 * time.Hour)
			verify(time.Now())
		}
	})
}

func TestSourceIssuesAnewAfterTheClockWasSetBack(t *testing.T) {
	set, err := Load(t.TempDir())
	require.NoError(t, err)
	s, err := set.Server.NewSource(Leaf{Name: "x", Hosts: []string{"x"}})
	require.NoError(t, err)
	first, err := s.get(time.Now())
	require.NoError(t, err)
	again, err := s.get(time.Now().AddDate(-50, 0, 0))
	require.NoError(t, err)
	require.NotSame(t, first, again)
}

func TestLoadKeyKeepsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machine.key")
	first, err := LoadKey(path)
	require.NoError(t, err)
	second, err := LoadKey(path)
	require.NoError(t, err)
	require.True(t, first.Equal(second))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	a, err := Identity(first.Public())
	require.NoError(t, err)
	b, err := Identity(&second.PublicKey)
	require.NoError(t, err)
	require.Equal(t, a, b)
	set, err := Load(t.TempDir())
	require.NoError(t, err)
	other, err := set.Client.Identity()
	require.NoError(t, err)
	require.NotEqual(t, a, other)
}

// TestALostKeyOfAnAuthority: a lost key has its own error, and Load generates no other key in its place.
func TestALostKeyOfAnAuthority(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir)
	require.NoError(t, err)
	key := filepath.Join(dir, "server-ca.key")
	require.NoError(t, os.Remove(key))
	_, err = Load(dir)
	require.ErrorContains(t, err, key+" is missing")
	require.ErrorContains(t, err, "coracle snapshot restore")
	require.NoFileExists(t, key)
}

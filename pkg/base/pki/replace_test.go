package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
)

func verifies(t *testing.T, bundle, chain []byte) error {
	t.Helper()
	o := x509.VerifyOptions{
		Roots:         x509.NewCertPool(),
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	require.True(t, o.Roots.AppendCertsFromPEM(bundle))
	block, rest := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	o.Intermediates.AppendCertsFromPEM(rest)
	_, err = leaf.Verify(o)
	return err
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	s, err := Load(dir)
	require.NoError(t, err)
	for _, a := range s.Authorities() {
		t.Run(a.Name, func(t *testing.T) {
			leaf := Leaf{Name: "x", Hosts: []string{"x"}}
			sign := func() []byte {
				chain, _, err := a.Issue(leaf)
				require.NoError(t, err)
				return chain
			}
			source, err := a.NewSource(leaf)
			require.NoError(t, err)
			first, err := source.Server(nil)
			require.NoError(t, err)
			before, early, version := a.Bundle(), sign(), s.Version()
			require.NoError(t, s.Replace(a))
			require.True(t, a.Replacing())
			both, late := a.Bundle(), sign()
			require.NotEqual(t, version, s.Version())
			require.NoError(t, s.Replace(a), "which has been done")
			require.Equal(t, both, a.Bundle())

			require.NoError(t, verifies(t, before, late), "who was not told of the new one")
			require.NoError(t, verifies(t, both, late))
			require.NoError(t, verifies(t, both, early))
			fresh, err := source.Server(nil)
			require.NoError(t, err)
			require.NotSame(t, first, fresh)
			require.Len(t, fresh.Certificate, 2)
			byNew, byOld := a.Signed(fresh.Leaf)
			require.True(t, byNew)
			require.False(t, byOld)
			byNew, byOld = a.Signed(first.Leaf)
			require.False(t, byNew)
			require.True(t, byOld)

			// Another process continues in the middle of it.
			again, err := Load(dir)
			require.NoError(t, err)
			require.Equal(t, s.Version(), again.Version())
			require.Equal(t, s.Machine, again.Machine)

			pool := a.Pool()
			require.NoError(t, s.Finish(a))
			require.NotSame(t, pool, a.Pool())
			after, last := a.Bundle(), sign()
			require.False(t, a.Replacing())
			require.NoError(t, s.Finish(a), "which has been done")
			require.NoError(t, verifies(t, after, last))
			require.NoError(t, verifies(t, after, late))
			require.NoError(t, verifies(t, both, last))
			require.Error(t, verifies(t, after, early))
			require.Error(t, verifies(t, before, last))
			again, err = Load(dir)
			require.NoError(t, err)
			require.Equal(t, s.Version(), again.Version())
			require.Equal(t, s.Machine, again.Machine)
			require.NoFileExists(t, filepath.Join(dir, a.file+nextSuffix))
		})
	}
}

// killed simulates the end of the process before or just after one of its file changes.
type killed struct{ after int }

var errKilled = errors.New("killed")

func (k *killed) write(path string, data []byte) error {
	if k.after--; k.after < 0 {
		return errKilled
	}
	return atomicfile.WriteDurably(path, data)
}

func (k *killed) remove(path string) error {
	if k.after--; k.after < 0 {
		return errKilled
	}
	return os.Remove(path)
}

// TestReplacementSurvivesKill: after a kill at any step, the next process finds CAs that trust each other, and can
// continue.
func TestReplacementSurvivesKill(t *testing.T) {
	leaf := Leaf{Name: "x"}
	for steps := range 12 {
		for _, repeat := range []bool{false, true} {
			t.Run(fmt.Sprint(steps, repeat), func(t *testing.T) {
				dir := t.TempDir()
				s, err := Load(dir)
				require.NoError(t, err)
				machine := s.Machine
				bundle := s.Client.Bundle()
				early, _, err := s.Client.Issue(leaf)
				require.NoError(t, err)
				disk := &killed{steps}
				// The process either ends at the first error, or continues with the next step.
				failed := false
				do := func(f func() error) {
					if failed && !repeat {
						return
					}
					if err := f(); err != nil {
						require.ErrorIs(t, err, errKilled)
						failed = true
						disk = &killed{1}
					}
				}
				for range 2 {
					do(func() error { return s.replace(disk, s.Client) })
					do(func() error { return s.finish(disk, s.Client) })
				}
				chain, _, err := s.Client.Issue(leaf)
				require.NoError(t, err)

				next, err := Load(dir)
				require.NoError(t, err)
				require.Equal(t, machine, next.Machine)
				require.NoError(t, verifies(t, next.Client.Bundle(), chain), "what was issued at the end")
				if next.Client.Replacing() {
					mine, _, err := next.Client.Issue(leaf)
					require.NoError(t, err)
					require.NoError(t, verifies(t, s.Client.Bundle(), mine))
				}
				if string(next.Client.Bundle()) == string(bundle) {
					require.NoError(t, verifies(t, next.Client.Bundle(), early))
				}
				require.NoError(t, next.Replace(next.Client))
				require.NoError(t, next.Finish(next.Client))
				last, err := Load(dir)
				require.NoError(t, err)
				require.Equal(t, next.Version(), last.Version())
				require.Error(t, verifies(t, last.Client.Bundle(), early))
			})
		}
	}
}

func TestLoadRemovesWhatWasNotFinished(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, "client-ca-next.pem"+atomicfile.Suffix)
	require.NoError(t, os.WriteFile(half, []byte("-----BEGIN EC PRIV"), 0o600))
	_, err := Load(dir)
	require.NoError(t, err)
	require.NoFileExists(t, half)
}

func TestLoadRefusesAReplacementOfAnotherCluster(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		s, err := Load(dir)
		require.NoError(t, err)
		require.NoError(t, s.Replace(s.Server))
	}
	other, err := os.ReadFile(filepath.Join(dirs[1], "server-ca"+nextSuffix))
	require.NoError(t, err)
	path := filepath.Join(dirs[0], "server-ca"+nextSuffix)
	for _, data := range [][]byte{other, other[:len(other)/2], nil} {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		_, err = Load(dirs[0])
		require.ErrorContains(t, err, path)
	}
}

func TestInspectShowsReplacements(t *testing.T) {
	dir := t.TempDir()
	s, err := Load(dir)
	require.NoError(t, err)
	require.NoError(t, s.Replace(s.Client))
	require.NoError(t, atomicfile.WriteDurably(filepath.Join(dir, "cluster-ca.crt"), s.Client.Bundle()))
	chain, _, err := s.Client.Issue(Leaf{Name: "x"})
	require.NoError(t, err)
	require.NoError(t, atomicfile.WriteDurably(filepath.Join(dir, machineCertificate), chain))
	all, err := Inspect(dir)
	require.NoError(t, err)
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
		require.WithinDuration(t, time.Now(), i.Since, time.Minute)
	}
	require.Equal(t,
		[]string{"authority of the API", "authority of clients", "authority of clients, being replaced", "authority of nodes",
			"service account key", "authority of the API, as joined", "authority of the API, as joined, being replaced",
			"certificate of this machine"}, names)
}

// TestFollowClientCAs: a server uses the pool at the time of the handshake, and resumed sessions do not bypass it.
func TestFollowClientCAs(t *testing.T) {
	s, err := Load(t.TempDir())
	require.NoError(t, err)
	serving, err := s.Server.NewSource(Leaf{Name: "coracle", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	config := FollowClientCAs(&tls.Config{GetCertificate: serving.Server, ClientAuth: tls.RequireAndVerifyClientCert},
		s.Client.Pool)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	cert, key, err := s.Client.Issue(Leaf{Name: "x"})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	client := &tls.Config{
		RootCAs:            s.Server.Pool(),
		Certificates:       []tls.Certificate{pair},
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	hello := func() error {
		conn, err := tls.Dial("tcp", listener.Addr().String(), client)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 5))
		return err
	}
	require.NoError(t, hello())
	require.NoError(t, s.Replace(s.Client))
	require.NoError(t, hello())
	require.NoError(t, s.Finish(s.Client))
	require.Error(t, hello())
}

package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-dev/coracle/pkg/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOneProcessADirectory(t *testing.T) {
	dir := t.TempDir()
	require.Zero(t, holder(dir))
	first, err := lock(dir)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), holder(dir))
	_, err = lock(dir)
	require.ErrorContains(t, err, "coracle stop")
	require.NoError(t, first.Close())
	require.Zero(t, holder(dir))
	require.NoError(t, waitUnlocked(dir))
	again, err := lock(dir)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestKubeconfigIsMergedAndTakenOut(t *testing.T) {
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	data := t.TempDir()
	ours, err := writeKubeconfig(data, "https://192.0.2.1:6443", keys)
	require.NoError(t, err)

	path := filepath.Join(t.TempDir(), ".kube", "config")
	require.NoError(t, mergeKubeconfig(path, ours))
	merged, err := clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, Context, merged.CurrentContext)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, unmergeKubeconfig(path, keys.Server.PEM))
	require.NoDirExists(t, filepath.Dir(path), "what we made is gone")

	theirs := api.NewConfig()
	theirs.Clusters["work"] = &api.Cluster{Server: "https://192.0.2.9"}
	theirs.AuthInfos["me"] = &api.AuthInfo{Token: "t"}
	theirs.Contexts["work"] = &api.Context{Cluster: "work", AuthInfo: "me"}
	theirs.CurrentContext = "work"
	require.NoError(t, clientcmd.WriteToFile(*theirs, path))
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, mergeKubeconfig(path, ours))
	merged, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, "work", merged.CurrentContext, "the user's choice stays")
	require.Contains(t, merged.Contexts, Context)
	other, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, unmergeKubeconfig(path, other.Server.PEM))
	merged, err = clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Contains(t, merged.Contexts, Context, "another cluster's context is not ours to remove")
	require.NoError(t, unmergeKubeconfig(path, keys.Server.PEM))
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))

	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.ErrorContains(t, mergeKubeconfig(path, ours), "--merge-kubeconfig=false")
}

func TestJoin(t *testing.T) {
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(joining(keys, joinAnswer{ClusterDomain: "cluster.local"}, http.NotFoundHandler()))
	serving, err := keys.Server.NewSource(pki.Leaf{Name: "coracle", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	server.TLS = tlsOf(serving)
	server.StartTLS()
	defer server.Close()

	j, err := join(t.Context(), server.URL, keys.Token()+"\n", "n1", "192.0.2.7")
	require.NoError(t, err)
	require.Equal(t, "cluster.local", j.ClusterDomain)
	block, _ := pem.Decode(j.Client)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.Equal(t, "system:node:n1", cert.Subject.CommonName)
	require.Equal(t, []string{nodesGroup}, cert.Subject.Organization)
	_, err = cert.Verify(x509.VerifyOptions{Roots: keys.Client.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	_, err = j.serving.Leaf.Verify(x509.VerifyOptions{Roots: keys.Server.Pool(), DNSName: "n1"})
	require.NoError(t, err)

	_, err = join(t.Context(), server.URL, keys.Token(), "N_1", "192.0.2.7")
	require.ErrorContains(t, err, "nodeName")
	_, err = join(t.Context(), server.URL, keys.Token(), "n1", "here")
	require.ErrorContains(t, err, "nodeIP")
	wrong := []byte(keys.Token())
	wrong[len(wrong)-1] ^= 1
	_, err = join(t.Context(), server.URL, string(wrong), "n1", "192.0.2.7")
	require.ErrorContains(t, err, "coracle status")
	other, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	_, err = join(t.Context(), server.URL, other.Token(), "n1", "192.0.2.7")
	require.ErrorContains(t, err, "not the one that the token was made for")
	server.Close()
	_, err = join(t.Context(), server.URL, keys.Token(), "n1", "192.0.2.7")
	require.ErrorContains(t, err, "no server answers")
}

// tlsOf gives every client the source's certificate; httptest's own would win otherwise.
func tlsOf(s *pki.Source) *tls.Config {
	config := &tls.Config{GetCertificate: s.Server}
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config, nil }}
}

func TestForgetStart(t *testing.T) {
	before := pss(os.Getpid())
	require.NoError(t, forgetStart())
	require.Less(t, pss(os.Getpid()), before)
}

func TestProgramMappings(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 fe:00 1 /bin/program
Rss: 100 kB
Anonymous: 0 kB
00500000-00501000 r--p 00100000 fe:00 1 /bin/program
Anonymous: 4 kB
00501000-00502000 rw-p 00101000 fe:00 1 /bin/program
Anonymous: 0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /lib/libc.so.6
Anonymous: 0 kB
7f0000001000-7f0000002000 r--p 00000000 00:00 0
Anonymous: 0 kB
`
	require.Equal(t, []mapping{{0x400000, 0x500000}}, programMappings(smaps, "/bin/program"))
}

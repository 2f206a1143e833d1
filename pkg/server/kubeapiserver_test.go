package server

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCertDirHasTheServingCertificate: as upstream's, a kube-apiserver without a certificate makes one in --cert-dir,
// which clients read as the authority, and uses it again.
func TestCertDirHasTheServingCertificate(t *testing.T) {
	k := KubeAPIServer{CertDir: filepath.Join(t.TempDir(), "certs"), BindAddress: net.IPv4(127, 0, 0, 2)}
	k.Config.ServiceCIDR, k.AdvertiseAddress = "10.0.0.0/24", net.IPv4(192, 0, 2, 1)
	var first []byte
	for range 2 {
		get, err := k.serving()
		require.NoError(t, err)
		pair, err := get(nil)
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		require.NoError(t, err)
		if first == nil {
			first = leaf.Raw
		}
		require.Equal(t, first, leaf.Raw)
		roots := x509.NewCertPool()
		text, err := os.ReadFile(filepath.Join(k.CertDir, "apiserver.crt"))
		require.NoError(t, err)
		require.True(t, roots.AppendCertsFromPEM(text))
		for _, host := range []string{"localhost", "127.0.0.1", "127.0.0.2", "192.0.2.1", "10.0.0.1", "kubernetes"} {
			_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
			require.NoError(t, err, host)
		}
		info, err := os.Stat(filepath.Join(k.CertDir, "apiserver.key"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
}

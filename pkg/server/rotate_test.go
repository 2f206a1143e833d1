package server

import (
	"context"
	"crypto/ecdsa"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const leafYear = 365 * 24 * time.Hour

// TestAccountKeysOverlap checks that tokens of the previous key are accepted only during the overlap.
func TestAccountKeysOverlap(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		keys, err := pki.Load(dir)
		require.NoError(t, err)
		a, err := newAccountKeys(config.Accounts{}, dir, "https://issuer", keys)
		require.NoError(t, err)
		first := keys.ServiceAccount
		require.NoError(t, a.rotate(time.Hour))
		public := a.public()
		require.Len(t, public, 2)
		require.False(t, first.PublicKey.Equal(public[0]), "signs")
		require.True(t, public[1].(*ecdsa.PublicKey).Equal(first.Public()), "verifies")
		time.Sleep(time.Hour + time.Second)
		require.Len(t, a.public(), 1)
	})
}

// TestAdminKubeconfigIsRenewed checks the renewal in the data directory and in the user's file, and that a context
// that the user removed is not added again.
func TestAdminKubeconfigIsRenewed(t *testing.T) {
	dir, home := t.TempDir(), filepath.Join(t.TempDir(), "config")
	synctest.Test(t, func(t *testing.T) {
		keys, err := pki.Load(filepath.Join(dir, "pki"))
		require.NoError(t, err)
		k := &adminKubeconfig{
			dataDir: dir,
			url:     "https://192.0.2.1:6443",
			merged:  home,
			keys:    keys,
			log:     slog.New(slog.DiscardHandler),
		}
		require.NoError(t, k.write(true))
		ended := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- k.Run(ctx) }()
		read := func(path string) []byte {
			c, err := clientcmd.LoadFromFile(path)
			require.NoError(t, err)
			info := c.AuthInfos[Context]
			if info == nil {
				return nil
			}
			return info.ClientCertificateData
		}
		first := read(filepath.Join(dir, command.Kubeconfig))
		require.Equal(t, first, read(home))
		cert := certificate(t, first)
		require.WithinDuration(t, time.Now().Add(leafYear), cert.NotAfter, time.Minute)

		time.Sleep(leafYear / 2)
		require.Equal(t, first, read(home))
		time.Sleep(leafYear / 4)
		second := read(filepath.Join(dir, command.Kubeconfig))
		require.NotEqual(t, first, second)
		require.Equal(t, second, read(home))

		require.NoError(t, unmergeKubeconfig(home, keys.Server.Bundle()))
		time.Sleep(leafYear)
		require.NotEqual(t, second, read(filepath.Join(dir, command.Kubeconfig)))
		require.NoFileExists(t, home)
		cancel()
		require.NoError(t, <-ended)
	})
}

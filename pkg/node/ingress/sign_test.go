package ingress

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// slow is a key whose signatures end when the test says so.
type slow struct {
	crypto.Signer
	begun, end chan struct{}
}

func (s slow) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	s.begun <- struct{}{}
	<-s.end
	return nil, nil
}

// TestHandshakesOfANamespaceTakeTurns checks that handshakes with the keys of one namespace do not take the processors.
func TestHandshakesOfANamespaceTakeTurns(t *testing.T) {
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	small, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(2)
		begun, end := make(chan struct{}, 10), make(chan struct{})
		key := func(namespace string) waiting {
			c := &tls.Certificate{PrivateKey: large}
			all.pace(namespace, c)
			p := c.PrivateKey.(waiting)
			p.Signer = slow{p.Signer, begun, end}
			return p
		}
		results := make(chan error, 10)
		sign := func(p waiting) {
			go func() {
				_, err := p.Sign(nil, nil, nil)
				results <- err
			}()
		}
		sign(key("one"))
		sign(key("one"))
		synctest.Wait()
		require.Len(t, begun, 1, "one at a time")
		sign(key("two"))
		sign(key("three"))
		synctest.Wait()
		require.Len(t, begun, 2, "two in all")
		end <- struct{}{}
		require.NoError(t, <-results)
		synctest.Wait()
		require.Len(t, begun, 3)
		require.ErrorIs(t, <-results, errSigning)
		close(end)
		require.NoError(t, <-results)
		require.NoError(t, <-results)

		all.keep(map[string]bool{"one": true})
		require.Len(t, all.of, 1)
		c := &tls.Certificate{PrivateKey: small}
		all.pace("one", c)
		require.Same(t, small, c.PrivateKey)
	})
}

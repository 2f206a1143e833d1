package kms

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kms/pkg/service"

	"github.com/coracle-dev/coracle/pkg/state/encryption/kms/kmstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = value.DefaultContext("/registry/secrets/default/a")

// connected returns a plugin, its socket, and a Provider that has checked it once.
func connected(t *testing.T) (*kmstest.Plugin, string, *Provider) {
	dir, err := os.MkdirTemp("", "kms") // the path of a socket has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	plugin, socket := kmstest.New("first"), filepath.Join(dir, "s")
	stop, err := plugin.Serve(socket)
	require.NoError(t, err)
	t.Cleanup(func() { stop() })
	p := provider(t, socket)
	require.NoError(t, p.Check(t.Context()))
	return plugin, socket, p
}

func provider(t *testing.T, socket string) *Provider {
	p, err := New(Config{Name: "plugin", Endpoint: "unix://" + socket, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// A seed whose key the plugin has not confirmed recently no longer encrypts, but still decrypts.
func TestWritesEndWithoutThePlugin(t *testing.T) {
	plugin, _, p := connected(t)
	sealed, err := p.TransformToStorage(t.Context(), []byte("plain"), at)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(writable), p.WritableUntil(), time.Minute)

	expired := *p.state.Load()
	expired.ExpirationTimestamp = time.Now().Add(-time.Second)
	p.state.Store(&expired)
	_, err = p.TransformToStorage(t.Context(), []byte("plain"), at)
	require.ErrorContains(t, err, "expired")
	plugin.Use("first", "out of order")
	require.ErrorContains(t, p.Check(t.Context()), "out of order")
	_, err = p.TransformToStorage(t.Context(), []byte("plain"), at)
	require.NoError(t, err, "as upstream: it still names the key")
	plain, stale, err := p.TransformFromStorage(t.Context(), sealed, at)
	require.NoError(t, err)
	require.False(t, stale)
	require.Equal(t, "plain", string(plain))

	plugin.Use("second", "ok")
	require.NoError(t, p.Check(t.Context()))
	_, stale, err = p.TransformFromStorage(t.Context(), sealed, at)
	require.NoError(t, err)
	require.True(t, stale, "the plugin has another key")
}

// A plugin that refuses a value is still healthy. A call that gets no answer makes the loop check, which reports the
// recovery.
func TestTheLoopFindsThePluginAgain(t *testing.T) {
	_, socket, p := connected(t)
	sealed, err := p.TransformToStorage(t.Context(), []byte("plain"), at)
	require.NoError(t, err)

	other := provider(t, socket)
	require.NoError(t, other.Check(t.Context()))
	damaged := append([]byte{}, sealed...)
	for i := range damaged {
		if string(damaged[i:i+5]) == "first" {
			copy(damaged[i:], "other") // the name of the key
			break
		}
	}
	_, _, err = other.TransformFromStorage(t.Context(), damaged, at)
	require.ErrorContains(t, err, "this key did not encrypt it")
	require.NoError(t, other.Health())

	recovered := make(chan struct{}, 1)
	other.Start(slog.New(slog.DiscardHandler), func() { recovered <- struct{}{} })
	err = ErrUnavailable // as after a call without an answer
	other.failed.Store(&err)
	_, _, err = other.TransformFromStorage(t.Context(), sealed, at)
	require.ErrorIs(t, err, ErrUnavailable, "nobody waits while it is known to be away")
	other.hurry <- struct{}{}
	<-recovered
	plain, _, err := other.TransformFromStorage(t.Context(), sealed, at)
	require.NoError(t, err)
	require.Equal(t, "plain", string(plain))
}

// Before the first successful check, a Provider refuses to encrypt.
func TestNothingBeforeTheFirstAnswer(t *testing.T) {
	p := provider(t, filepath.Join(t.TempDir(), "none"))
	_, err := p.TransformToStorage(t.Context(), []byte("plain"), at)
	require.ErrorIs(t, err, ErrUnavailable)
	require.Zero(t, p.WritableUntil())
	_, err = New(Config{Name: "plugin", Endpoint: "https://example.org", Timeout: time.Second})
	require.ErrorContains(t, err, "unsupported scheme")
}

// stalling is a plugin in this process whose calls a test can block or fail.
type stalling struct {
	decrypts int
	fails    func() bool   // whether Decrypt fails with ErrUnavailable
	asked    chan struct{} // receives when Status is called, if not nil
	goOn     chan struct{} // Status waits for it if asked is set
}

func (s *stalling) Status(context.Context) (*service.StatusResponse, error) {
	if s.asked != nil {
		s.asked <- struct{}{}
		<-s.goOn
	}
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: "first"}, nil
}

func (s *stalling) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	return &service.EncryptResponse{Ciphertext: data, KeyID: "first"}, nil
}

func (s *stalling) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	s.decrypts++
	if s.fails() {
		return nil, ErrUnavailable
	}
	return req.Ciphertext, nil
}

// stalled returns a Provider with the plugin s, and values of other processes.
func stalled(t *testing.T, s *stalling) (p *Provider, values [][]byte) {
	for range 3 {
		p = provide(Config{Name: "plugin"}, s, func() {})
		require.NoError(t, p.Check(t.Context()))
		sealed, err := p.TransformToStorage(t.Context(), []byte("plain"), at)
		require.NoError(t, err)
		values = append(values, sealed)
	}
	return p, values[:2]
}

// A plugin whose status is healthy but that decrypts nothing counts as unavailable, and gets few calls however often
// values are read.
func TestAPluginThatDecryptsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stalling{fails: func() bool { return true }}
		p, values := stalled(t, s)
		recovered := 0
		p.Start(slog.New(slog.DiscardHandler), func() {
			recovered++
			for _, v := range values {
				_, _, err := p.TransformFromStorage(t.Context(), v, at)
				require.ErrorIs(t, err, ErrUnavailable)
			}
		})
		_, _, err := p.TransformFromStorage(t.Context(), values[0], at)
		require.ErrorIs(t, err, ErrUnavailable)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ErrorIs(t, p.Health(), ErrUnavailable)
		p.Close()
		require.InDelta(t, time.Minute/retry, recovered, 2)
		require.Equal(t, recovered+1, s.decrypts, "the second value is not asked for")
	})
}

// A failed call during a status request is also reported when the plugin has recovered.
func TestACallFailsWhileTheStatusIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := true
		s := &stalling{fails: func() bool { return failing }}
		p, values := stalled(t, s)
		s.asked, s.goOn = make(chan struct{}), make(chan struct{})
		recovered := make(chan struct{}, 10)
		p.Start(slog.New(slog.DiscardHandler), func() { recovered <- struct{}{} })
		<-s.asked
		_, _, err := p.TransformFromStorage(t.Context(), values[0], at)
		require.ErrorIs(t, err, ErrUnavailable)
		failing = false
		s.goOn <- struct{}{}
		synctest.Wait()
		require.Empty(t, recovered, "it may not be so yet")
		<-s.asked
		s.goOn <- struct{}{}
		<-recovered
		plain, _, err := p.TransformFromStorage(t.Context(), values[0], at)
		require.NoError(t, err)
		require.Equal(t, "plain", string(plain))
		p.Close()
	})
}

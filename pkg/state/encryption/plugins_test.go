package encryption

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/encryption/kms"
	"github.com/coracle-dev/coracle/pkg/state/encryption/kms/kmstest"
)

const secretKey = "/registry/secrets/default/a"

type plugged struct {
	*bed
	plugin *kmstest.Plugin
	socket string
	stop   func() // of the plugin
}

func newPlugged(t *testing.T) *plugged {
	dir, err := os.MkdirTemp("", "kms") // the path of a socket has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &plugged{bed: newBed(t), plugin: kmstest.New("first"), socket: filepath.Join(dir, "s")}
	p.serve()
	t.Cleanup(func() { p.stop() })
	p.write(configured("secrets", p.provider("plugin", p.socket), identity))
	return p
}

func (p *plugged) serve() {
	stop, err := p.plugin.Serve(p.socket)
	require.NoError(p.t, err)
	p.stop = stop
}

func (p *plugged) provider(name, socket string) string {
	return fmt.Sprintf("{kms: {apiVersion: v2, name: %s, endpoint: 'unix://%s', timeout: 2s}}", name, socket)
}

func (p *plugged) run() (k *Keeper, end func()) {
	k, err := New(p.config(false))
	require.NoError(p.t, err)
	plugins := background(p.t, k.Plugins())
	keeper := background(p.t, k)
	return k, func() { keeper(); plugins() }
}

func TestPluginsKeysEncrypt(t *testing.T) {
	p := newPlugged(t)
	k, end := p.run()
	require.NoError(t, k.PluginsHealth(t.Context()))
	p.create(secretKey, "plain")
	require.True(t, strings.HasPrefix(p.stored(secretKey), "k8s:enc:kms:v2:plugin:"))
	require.NotContains(t, p.stored(secretKey), "plain")
	got, err := p.store.Get(t.Context(), secretKey)
	require.NoError(t, err)
	require.Equal(t, "plain", string(got.Value))
	require.Zero(t, p.plugin.Decrypts.Load(), "its own seed needs no plugin")

	// With another key, Reencrypt rewrites earlier values, and the status says so.
	p.plugin.Use("second", "ok")
	require.NoError(t, k.settings().plugins[0].Check(t.Context()))
	before := p.stored(secretKey)
	s, err := k.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Count{{Resource: "secrets", Label: Label{"kms", "plugin"}, Objects: 1}}, s.Counts)
	require.NoError(t, k.Reencrypt(quiet))
	require.NotEqual(t, before, p.stored(secretKey))
	s, err = k.Status(t.Context())
	require.NoError(t, err)
	require.True(t, s.Counts[0].Current)
	end()

	// A restart decrypts the seed of the stored values with the plugin once.
	_, end = p.run()
	defer end()
	for range 3 {
		got, err = p.store.Get(t.Context(), secretKey)
		require.NoError(t, err)
		require.Equal(t, "plain", string(got.Value))
	}
	require.EqualValues(t, 1, p.plugin.Decrypts.Load())
}

// A start waits for a plugin, and fails with advice.
func TestStartWithoutPlugin(t *testing.T) {
	p := newPlugged(t)
	p.stop()
	k, err := New(p.config(false))
	require.NoError(t, err)
	plugins := k.Plugins()
	plugins.wait = 10 * time.Millisecond
	err = plugins.Run(t.Context())
	require.ErrorIs(t, err, kms.ErrUnavailable)
	require.ErrorContains(t, err, p.socket)
	require.ErrorContains(t, err, "Start the plugin first")

	k, err = New(p.config(false))
	require.NoError(t, err)
	plugins = k.Plugins()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- plugins.Run(ctx) }()
	p.serve() // while it waits
	<-plugins.Ready()
	cancel()
	require.NoError(t, <-ended)
}

// While the plugin is away, values with known seeds are read and written, and others fail at once. They are read again
// when it is back.
func TestPluginIsAwayAndComesBack(t *testing.T) {
	p := newPlugged(t)
	_, end := p.run()
	p.create(secretKey, "plain")
	end()

	k, end := p.run()
	defer end()
	p.stop()
	_, err := p.store.Get(t.Context(), secretKey)
	require.ErrorIs(t, err, kms.ErrUnavailable, "another process' seed")
	require.Error(t, k.PluginsHealth(t.Context()))
	require.Contains(t, k.Warnings()[0], "writes of the kinds that it encrypts fail")
	began := time.Now()
	for range 20 {
		_, err = p.store.Get(t.Context(), secretKey)
		require.ErrorIs(t, err, kms.ErrUnavailable)
	}
	require.Less(t, time.Since(began), 20*2*time.Second, "not each waits for the plugin")
	const own = "/registry/secrets/default/own"
	p.create(own, "mine")
	got, err := p.store.Get(t.Context(), own)
	require.NoError(t, err)
	require.Equal(t, "mine", string(got.Value))

	kv, _, _, err := p.store.Stored(t.Context(), secretKey, "", 1, 0)
	require.NoError(t, err)
	p.broken = []cache.Unreadable{{Key: secretKey, Revision: kv[0].Revision, Err: kms.ErrUnavailable}}
	p.serve()
	// The gRPC client may pause between attempts.
	require.Eventually(t, func() bool {
		return k.settings().plugins[0].Check(t.Context()) == nil
	}, time.Minute, time.Millisecond)
	changes, _ := p.store.Changes(t.Context(), secretKey, kv[0].Revision)
	k.reread()
	require.Equal(t, "plain", nextValue(changes), "caches follow it")
}

func nextValue(changes <-chan kind.Batch) string {
	for {
		if b := <-changes; len(b.Events) > 0 { // empty batches only report a revision
			return string(b.Events[0].Value)
		}
	}
}

// Objects that could not be read during a start are read again after it, if their plugin came back before.
func TestPluginComesBackDuringTheStart(t *testing.T) {
	p := newPlugged(t)
	_, end := p.run()
	p.create(secretKey, "plain")
	end()
	kv, _, _, err := p.store.Stored(t.Context(), secretKey, "", 1, 0)
	require.NoError(t, err)
	p.broken = []cache.Unreadable{{Key: secretKey, Revision: kv[0].Revision, Err: kms.ErrUnavailable}}
	changes, _ := p.store.Changes(t.Context(), secretKey, kv[0].Revision)

	k, err := New(p.config(false))
	require.NoError(t, err)
	defer background(t, k.Plugins())()
	k.reread() // the cache loads
	defer background(t, k)()
	require.Equal(t, "plain", nextValue(changes))
}

// A plugin that hangs, is unhealthy or has lost its key delays no operation by more than a call's timeout, and is not
// used.
func TestBadPlugins(t *testing.T) {
	p := newPlugged(t)
	p.write(configured("secrets", identity))
	k, end := p.run()
	defer end()
	p.create(secretKey, "plain")

	goOn := p.plugin.Hang()
	p.write(configured("secrets", p.provider("plugin", p.socket), identity))
	began := time.Now()
	require.ErrorContains(t, k.reload(t.Context()), "does not answer")
	require.Less(t, time.Since(began), 30*time.Second)
	p.plugin.Use("", "ok")
	goOn() // this may also unblock the Keeper's own attempt
	require.ErrorContains(t, k.reload(t.Context()), "no valid key")
	p.plugin.Use("first", "the HSM is on fire")
	require.ErrorContains(t, k.reload(t.Context()), "the HSM is on fire")
	require.NotEmpty(t, k.Warnings())
	p.plugin.Use("first", "ok")
	require.NoError(t, k.reload(t.Context()))
	require.NoError(t, k.Reencrypt(quiet))
	require.True(t, strings.HasPrefix(p.stored(secretKey), kmsPrefix))

	// Without the provider, stored values could not be read.
	p.write(configured("secrets", keys("secretbox", "a"), identity))
	require.ErrorContains(t, k.reload(t.Context()), "could not read")
	// With another provider before it, all values move to that provider.
	p.write(configured("secrets", keys("secretbox", "a"), p.provider("plugin", p.socket)))
	require.NoError(t, k.Reencrypt(quiet))
	require.True(t, strings.HasPrefix(p.stored(secretKey), "k8s:enc:secretbox:"))
}

// Upstream reads values written here with the same plugin, and vice versa.
func TestUpstreamsKMS(t *testing.T) {
	p := newPlugged(t)
	_, end := p.run()
	defer end()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	theirs, err := encryptionconfig.LoadEncryptionConfig(ctx, p.file, false, "")
	require.NoError(t, err)
	transformer := theirs.Transformers[schema.GroupResource{Resource: "secrets"}]
	p.create(secretKey, "plain")
	plain, stale, err := transformer.TransformFromStorage(ctx, []byte(p.stored(secretKey)),
		value.DefaultContext(secretKey))
	require.NoError(t, err)
	require.False(t, stale)
	require.Equal(t, "plain", string(plain))
	stored, err := transformer.TransformToStorage(ctx, []byte("theirs"), value.DefaultContext(secretKey))
	require.NoError(t, err)
	got, err := p.values.Open(secretKey, stored)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(got))
}

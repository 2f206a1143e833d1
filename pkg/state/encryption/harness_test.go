package encryption

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func row(group, plural, keys string) *kind.Resource {
	return &kind.Resource{
		GroupVersionKind: schema.GroupVersionKind{Group: group, Version: "v1", Kind: plural}, Plural: plural, Keys: keys,
		Namespaced: true,
		New:        func() client.Object { return &corev1.Secret{} },
		NewList:    func() client.ObjectList { return &corev1.SecretList{} },
	}
}

var kinds = kind.MustTable(row("", "secrets", "secrets"), row("", "configmaps", "configmaps"),
	row("", "services", "services/specs"), row("apps", "deployments", "deployments"))

func secret(i byte) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string('A'+rune(i)), 32)))
}

// configured returns a configuration with one entry; providers are in YAML flow style.
func configured(resources string, providers ...string) string {
	return fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: "+
		"[%s]\n  providers: [%s]\n",
		resources, strings.Join(providers, ", "))
}

func keys(provider string, names ...string) string {
	var all []string
	for _, n := range names {
		all = append(all, fmt.Sprintf("{name: %s, secret: %s}", n, secret(n[0]-'a')))
	}
	return fmt.Sprintf("{%s: {keys: [%s]}}", provider, strings.Join(all, ", "))
}

const identity = "{identity: {}}"

// bed is a store with an encryption configuration.
type bed struct {
	t      testing.TB
	dir    string
	file   string
	values *Values
	store  *store.Store
	broken []cache.Unreadable
	log    *slog.Logger
}

func newBed(t testing.TB) *bed {
	b := &bed{t: t, dir: t.TempDir(), values: NewValues(kinds), log: slog.New(slog.DiscardHandler)}
	b.file = filepath.Join(b.dir, "encryption", "config.yaml")
	b.start()
	return b
}

func (b *bed) start() (stop func()) {
	var err error
	b.store, err = store.New(store.Config{
		Dir:    filepath.Join(b.dir, "store"),
		Values: b.values,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b.t, err)
	return background(b.t, b.store)
}

func background(t testing.TB, c interface {
	Run(context.Context) error
	Ready() <-chan struct{}
}) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		cancel()
		if !stopped {
			stopped = true
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	select {
	case <-c.Ready():
	case err := <-done:
		stopped = true
		require.NoError(t, err)
	}
	return stop
}

func (b *bed) write(config string) {
	require.NoError(b.t, os.MkdirAll(filepath.Dir(b.file), 0o700))
	require.NoError(b.t, write(b.file, []byte(config)))
}

func (b *bed) config(managed bool) Config {
	return Config{
		File:       b.file,
		Managed:    managed,
		Values:     b.values,
		Store:      b.store,
		Logger:     b.log,
		Unreadable: func() []cache.Unreadable { return b.broken },
	}
}

func (b *bed) keeper(managed bool) (*Keeper, func()) {
	k, err := New(b.config(managed))
	require.NoError(b.t, err)
	return k, background(b.t, k)
}

func (b *bed) create(key, value string) int64 {
	rev, err := b.store.Create(b.t.Context(), key, []byte(value), 0)
	require.NoError(b.t, err)
	return rev
}

func (b *bed) stored(key string) string {
	kvs, _, _, err := b.store.Stored(b.t.Context(), key, "", 1, 0)
	require.NoError(b.t, err)
	require.Len(b.t, kvs, 1)
	return string(kvs[0].Value)
}

func quiet(string) {}

package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
)

// bench is a directory of plugins that record their requests.
type bench struct {
	*testing.T
	dir      string
	accounts map[string]*corev1.ServiceAccount
	metrics  *prometheus.Registry

	mu     sync.Mutex
	tokens int
	logged strings.Builder
}

func newBench(t *testing.T) *bench {
	return &bench{T: t, dir: t.TempDir(), accounts: map[string]*corev1.ServiceAccount{}, metrics: prometheus.NewRegistry()}
}

// Write implements io.Writer, for the log.
func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logged.Write(p)
}

func (b *bench) log() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logged.String()
}

// program makes a plugin from a shell script. It appends its requests to the file asked.
func (b *bench) program(name, script string) {
	// This process does not write the program itself: a child that another test forks could have the file open for
	// writing, and executing it would fail.
	text := "#!/bin/sh\nread -r line; echo \"$line\" >>" + filepath.Join(b.dir, "asked") + "\n" + script
	require.NoError(b, os.WriteFile(filepath.Join(b.dir, name+".sh"), []byte(text), 0o600))
	if err := os.Symlink("/bin/sh", filepath.Join(b.dir, name)); !errors.Is(err, os.ErrExist) {
		require.NoError(b, err)
	}
}

// asked returns the plugins' requests since the last call.
func (b *bench) asked() []string {
	path := filepath.Join(b.dir, "asked")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(b, err)
	require.NoError(b, os.Remove(path))
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// provider returns a plugin's configuration. more adds fields.
func (b *bench) provider(name, images string, more ...string) string {
	return fmt.Sprintf("- name: %s\n  matchImages: [%s]\n  defaultCacheDuration: 0s\n  apiVersion: "+
		"credentialprovider.kubelet.k8s.io/v1\n  args: [%s.sh]\n  %s\n",
		name, images, filepath.Join(b.dir, name), strings.Join(more, "\n  "))
}

func (b *bench) open(providers ...string) *Plugins {
	p, err := b.try("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n" +
		strings.Join(providers, ""))
	require.NoError(b, err)
	return p
}

func (b *bench) try(config string) (*Plugins, error) {
	file := filepath.Join(b.dir, "config.yaml")
	require.NoError(b, os.WriteFile(file, []byte(config), 0o600))
	b.metrics = prometheus.NewRegistry()
	return New(Config{File: file, BinDir: b.dir, Logger: slog.New(slog.NewTextHandler(b, nil)), Metrics: b.metrics,
		Account: func(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
			if a := b.accounts[namespace+"/"+name]; a != nil {
				return a, nil
			}
			return nil, errors.New("no such account")
		},
		Token: func(_ context.Context, p *corev1.Pod, account types.UID, audience string) (string, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return fmt.Sprintf("token-%d of %s for %s in %s", b.tokens, account, audience, p.Name), nil
		}})
}

// answer returns a script that prints a response.
func answer(cacheKey, duration string, auth string) string {
	return fmt.Sprintf(`echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":%q%s,"auth":{%s}}'`, cacheKey, duration, auth)
}

func login(where, password string) string {
	return fmt.Sprintf(`%q:{"username":"me","password":%q}`, where, password)
}

func pod(account string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod"},
		Spec:       corev1.PodSpec{ServiceAccountName: account},
	}
}

// passwords returns the passwords of credentials, in order.
func passwords(list []keyring.Credential) (out []string) {
	for _, c := range list {
		out = append(out, c.Password)
	}
	return out
}

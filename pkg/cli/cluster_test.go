package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	_, err := Connect("", "")
	require.EqualError(t, err, "there is no cluster to talk to: start one with `coracle start`, or set KUBECONFIG")

	file := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "shop"}}]}`), 0o600))
	c, err := Connect(file, "")
	require.NoError(t, err)
	require.Equal(t, "shop", c.Namespace, "the namespace of the context")
	c, err = Connect(file, "other")
	require.NoError(t, err)
	require.Equal(t, "other", c.Namespace)
	require.Equal(t, "https://127.0.0.1:1", c.REST.Host)
	_, err = Connect(filepath.Join(dir, "missing"), "")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestUseCluster(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBECACHEDIR", "")
	UseCluster(dir)
	require.Empty(t, os.Getenv("KUBECONFIG"), "there is no cluster in the directory")
	require.NoError(t, os.WriteFile(filepath.Join(dir, Kubeconfig), nil, 0o600))
	UseCluster(dir)
	require.Equal(t, filepath.Join(dir, Kubeconfig), os.Getenv("KUBECONFIG"))
	require.Equal(t, filepath.Join(dir, "kubectl-cache"), os.Getenv("KUBECACHEDIR"))
	t.Setenv("KUBECONFIG", "/mine")
	UseCluster(dir)
	require.Equal(t, "/mine", os.Getenv("KUBECONFIG"), "the user's choice stands")
}

func TestTokenCommands(t *testing.T) {
	byType := func(o ctrl.Object) []string { return []string{string(o.(*corev1.Secret).Type)} }
	c := &Cluster{Client: fake.NewClientBuilder().WithIndex(&corev1.Secret{}, "type", byType).Build(), REST: &rest.Config{Host: "https://10.0.0.1:6443"}}
	require.ErrorContains(t, c.CreateToken(t.Context(), 0, "", false, io.Discard), "the kubeconfig has no certificate authority data")
	require.Equal(t, "No join tokens. Make one: coracle token create\n", output(t, func(out io.Writer) error { return c.Tokens(t.Context(), out) }))

	ca := filepath.Join(t.TempDir(), "ca")
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca, keys.Server.Bundle(), 0o600))
	c.REST.CAFile = ca
	command := output(t, func(out io.Writer) error { return c.CreateToken(t.Context(), time.Hour, "for the shed", true, out) })
	before, token, ok := strings.Cut(strings.TrimSpace(command), " --token ")
	require.True(t, ok, command)
	require.Equal(t, "coracle agent --join https://10.0.0.1:6443", before)

	listed := strings.Split(output(t, func(out io.Writer) error { return c.Tokens(t.Context(), out) }), "\n")
	require.Len(t, listed, 3)
	require.Regexp(t, `^\w+ +\w+ +in (59m|60m) +for the shed$`, listed[1])
	id := strings.Fields(listed[1])[0]
	require.Equal(t, "token "+id+" revoked\n", output(t, func(out io.Writer) error { return c.RevokeTokens(t.Context(), []string{token}, out) }), "given as a whole")
	require.Error(t, c.RevokeTokens(t.Context(), []string{id}, io.Discard), "it is revoked already")
}

// A plugin that calls kubectl finds it, even if this program's name is coracle.
func TestPluginsFindKubectl(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBECACHEDIR", dir)
	self, err := os.Executable()
	require.NoError(t, err)
	link, err := newPlugins("/usr/bin/coracle").link()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "bin", "kubectl"), link)
	target, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, self, target)

	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("/an/older/coracle", link))
	_, err = newPlugins("coracle").link()
	require.NoError(t, err)
	target, err = os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, self, target, "the link of an older binary is replaced")

	named, err := newPlugins(link).link()
	require.NoError(t, err)
	require.Equal(t, link, named, "started as kubectl, that link is it")
}

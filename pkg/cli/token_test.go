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
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/command/commandtest"
)

func TestTokenCommands(t *testing.T) {
	byType := func(o ctrl.Object) []string { return []string{string(o.(*corev1.Secret).Type)} }
	c := &command.Cluster{
		Client: fake.NewClientBuilder().WithIndex(&corev1.Secret{}, "type", byType).Build(),
		REST:   &rest.Config{Host: "https://10.0.0.1:6443"},
	}
	require.ErrorContains(t, CreateToken(t.Context(), c, 0, "", false, io.Discard),
		"the kubeconfig has no certificate authority data")
	require.Equal(t, "No join tokens. Make one: coracle token create\n",
		commandtest.Output(t, func(out io.Writer) error { return Tokens(t.Context(), c, out) }))

	ca := filepath.Join(t.TempDir(), "ca")
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca, keys.Server.Bundle(), 0o600))
	c.REST.CAFile = ca
	line := commandtest.Output(t, func(out io.Writer) error {
		return CreateToken(t.Context(), c, time.Hour, "for the shed", true, out)
	})
	words := strings.Fields(line)
	require.Equal(t, "echo "+words[1]+" | coracle agent --join https://10.0.0.1:6443 --token -\n", line,
		"the token is no argument of a process")
	token := words[1]

	listed := strings.Split(commandtest.Output(t, func(out io.Writer) error { return Tokens(t.Context(), c, out) }), "\n")
	require.Len(t, listed, 3)
	require.Regexp(t, `^\w+ +\w+ +in (59m|60m) +for the shed$`, listed[1])
	id := strings.Fields(listed[1])[0]
	require.Equal(t, "token "+id+" revoked\n",
		commandtest.Output(t, func(out io.Writer) error { return RevokeTokens(t.Context(), c, []string{token}, out) }),
		"given as a whole")
	require.Error(t, RevokeTokens(t.Context(), c, []string{id}, io.Discard), "it is revoked already")
}

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/systems"
)

// TestAnOperatorsManifests checks that the printed objects are a deployment in a namespace of its own whose account has
// the rights, and that its options are ones of the command.
func TestAnOperatorsManifests(t *testing.T) {
	cmd := operatorCommand(systems.All())
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"buildbarn", "--print-manifests", "--image", "registry.example/coracle:1"})
	require.NoError(t, cmd.Execute())
	documents := strings.Split(out.String(), "---\n")
	for i, kind := range []string{
		"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment",
	} {
		require.Contains(t, documents[i+1], "kind: "+kind+"\n")
	}
	require.Contains(t, documents[2], "namespace: buildbarn-system\n")
	require.Contains(t, documents[4], "namespace: buildbarn-system\n")
	var d appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[7]), &d))
	require.Equal(t, "buildbarn-system", d.Namespace)
	c := d.Spec.Template.Spec.Containers[0]
	require.Equal(t, "registry.example/coracle:1", c.Image)
	sub, rest, err := operatorCommand(systems.All()).Find(c.Args[1:])
	require.NoError(t, err)
	require.NoError(t, sub.ParseFlags(rest))
}

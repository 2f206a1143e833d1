package clients

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestHelm installs, tests, upgrades, rolls back and uninstalls a chart with a CustomResourceDefinition, an object
// of it, hooks and a test.
func TestHelm(t *testing.T) {
	program := built(t, "helm", "helm.sh/helm/v4/cmd/helm")
	chart, err := filepath.Abs("testdata/fleet")
	require.NoError(t, err)
	h := host.New(t)
	h.Start()
	helm := func(line string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), host.Patience)
		defer cancel()
		c := h.Command(ctx, program, strings.Fields(line)...)
		c.Env = append(c.Env, "KUBECONFIG="+filepath.Join(h.DataDir, "kubeconfig"))
		out, err := c.CombinedOutput()
		return string(out), err
	}
	does := func(line, want string) {
		t.Helper()
		out, err := helm(line)
		require.NoError(t, err, "helm %s\n%s", line, out)
		require.Contains(t, out, want, "helm %s", line)
	}
	does("install one "+chart+" --wait --timeout 80s", "STATUS: deployed")
	require.Equal(t, "pre-install red\n", h.Ctl("logs job/one-pre-install"))
	require.Equal(t, "red", h.Ctl("get ship one-ship -o jsonpath={.spec.color}"))
	does("test one --logs", "one-web-")
	does("upgrade one "+chart+" --set color=green --set replicas=2 --wait --timeout 80s",
		"Release \"one\" has been upgraded")
	require.Equal(t, "post-upgrade green\n", h.Ctl("logs job/one-post-upgrade"))
	require.Equal(t, "2", h.Ctl("get deployment one-web -o jsonpath={.status.availableReplicas}"))
	out, err := helm("upgrade one " + chart + " --set color=blue")
	require.Error(t, err)
	require.Contains(t, out,
		`Ship.fleet.example.org "one-ship" is invalid: spec.color: Unsupported value: "blue": supported values: "red", "green"`)
	does("rollback one 1 --wait --timeout 80s", "Rollback was a success")
	require.Equal(t, "red", h.Ctl("get ship one-ship -o jsonpath={.spec.color}"))
	does("status one", "Rollback to 1")
	does("uninstall one --wait --timeout 80s", "uninstalled")
	require.Equal(t, "pre-delete red\n", h.Ctl("logs job/one-pre-delete"))
	require.Empty(t, h.Ctl("get ships,deployments -o name"))
}

// TestLargeDefinition applies a CustomResourceDefinition of about a megabyte server-side, as Prometheus operator's
// are, and uses its kind at once.
func TestLargeDefinition(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	var properties strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&properties, "                  field%d: {type: string, maxLength: %d, description: %q}\n", i, i+1,
			strings.Repeat(fmt.Sprintf("What field %d is for. ", i), 20))
	}
	definition := `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: larges.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: larges, singular: large, kind: Large}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
                type: object
                properties:
` + properties.String()
	require.Greater(t, len(definition), 900<<10)
	apply := func() string {
		return h.Pipe(definition, "ctl", "apply", "--server-side", "-f", "-")
	}
	began := time.Now()
	require.Equal(t, "customresourcedefinition.apiextensions.k8s.io/larges.example.org serverside-applied\n", apply())
	// kubectl's next wait needs a list of conditions to exist.
	h.Ctl("wait crd/larges.example.org --for=jsonpath={.status.acceptedNames.kind}=Large --timeout=60s")
	h.Ctl("wait crd/larges.example.org --for=condition=Established --timeout=60s")
	t.Logf("%d KiB, established after %s", len(definition)>>10, time.Since(began).Round(time.Millisecond))
	version := func() string { return h.Ctl("get crd larges.example.org -o jsonpath={.metadata.resourceVersion}") }
	before := version()
	apply()
	require.Equal(t, before, version(), "the same again changes nothing")
	h.Apply(`{apiVersion: example.org/v1, kind: Large, metadata: {name: a, namespace: default}, spec: {field7: seven}}`)
	require.Contains(t,
		h.Fails("ctl", "patch", "large", "a", "--type=merge", "-p", `{"spec":{"field7":"too long for it"}}`),
		"spec.field7: Too long: may not be more than 8 bytes")
	require.Contains(t, h.Ctl("explain large.spec.field1999"), "What field 1999 is for.")
}

package apiserver

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// kubeconfig writes a kubeconfig for system:masters.
func (w *world) kubeconfig() string {
	w.t.Helper()
	cert, key := pems(w.t, w.ca.issue(w.t, "admin", "system:masters"))
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: w.url, CertificateAuthorityData: w.ca.pem()}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "d"}
	c.CurrentContext = "x"
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	require.NoError(w.t, clientcmd.WriteToFile(*c, path))
	return path
}

type fatal string

func TestKubectl(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	w.do(w.http, "POST", "/api/v1/namespaces/d/serviceaccounts", `{"metadata":{"name":"default"}}`)
	config, home := w.kubeconfig(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("KUBECTL_KUBERC", "false")
	cmdutil.BehaviorOnFatal(func(text string, _ int) { panic(fatal(text)) })
	defer cmdutil.DefaultBehaviorOnFatal()
	kubectl := func(args ...string) (out string, err string) {
		var o, e bytes.Buffer
		flags := genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50)
		c := cmd.NewKubectlCommand(cmd.KubectlOptions{ConfigFlags: flags, Arguments: append([]string{"kubectl"}, args...),
			IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: &o, ErrOut: &e}})
		c.SetArgs(append([]string{"--kubeconfig", config, "--cache-dir", filepath.Join(home, "cache")}, args...))
		c.SetOut(&o)
		c.SetErr(&e)
		defer func() {
			if p := recover(); p != nil {
				text, ok := p.(fatal)
				if !ok {
					panic(p)
				}
				out, err = o.String(), e.String()+string(text)
			}
		}()
		if x := c.Execute(); x != nil {
			return o.String(), e.String() + x.Error()
		}
		return o.String(), e.String()
	}
	manifest, rerr := os.ReadFile("../../../manifests/examples/hello.yaml")
	require.NoError(t, rerr)
	file := filepath.Join(home, "manifest.yaml")
	for _, step := range []struct {
		manifest, args, out, fail string
	}{
		{string(manifest), "apply -f FILE", "created", ""},
		{string(manifest), "apply -f FILE", "unchanged", ""},
		{string(manifest), "apply --server-side --force-conflicts -f FILE", "serverside-applied", ""},
		{string(manifest), "diff -f FILE", "", ""},
		{"", "get deploy,cm,svc", "hello", ""},
		{"", "get pods", "", "No resources found in d namespace."},
		{"", "get deploy -o wide", "SELECTOR", ""},
		{"", "get deploy hello -o yaml", "kind: Deployment", ""},
		{"", "get nosuch", "", `the server doesn't have a resource type "nosuch"`},
		{"", "get cm nosuch", "", `configmaps "nosuch" not found`},
		{"", "explain deployment.spec.replicas", "FIELD: replicas <integer>", ""},
		{"", "explain pods --recursive", "ephemeralContainers", ""},
		{"", "explain tasks.spec", "image", ""},
		{"", "explain tasks.spec.scheduleTimeoutSeconds", "how long an attempt may wait for a feasible node", ""},
		{"", "api-resources", "deployments", ""},
		{"", "api-versions", "apps/v1", ""},
		{"", "get --raw /version", "v1.37.1", ""},
		{"", "describe deploy hello", "StrategyType", ""},
		{"", "scale deploy hello --replicas=5", "scaled", ""},
		{"", "label cm --all x=y", "labeled", ""},
		{"", "annotate deploy hello a=b", "annotated", ""},
		{"", "set image deploy/hello *=hello:2", "image updated", ""},
		{"", "patch deploy hello -p {\"spec\":{\"replicas\":2}}", "patched", ""},
		{
			"", "patch deploy hello --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":3}]", "patched",
			"",
		},
		{"", "auth can-i create pods", "yes", ""},
		{"", "auth whoami", "admin", ""},
		{"", "create token default", "ey", ""},
		{"", "create ns e --dry-run=server", "created (server dry run)", ""},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\nfoo: bar\n", "apply -f FILE", "", `unknown field "foo"`},
		{
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\nfoo: bar\n", "apply -f FILE --validate=warn", "created",
			`Warning: unknown field "foo"`,
		},
		{"", "get --raw /readyz?verbose", "readyz check passed", ""},
		{"", "delete deploy hello", "deleted", ""},
		{"", "delete cm --all", "deleted", ""},
	} {
		require.NoError(t, os.WriteFile(file, []byte(step.manifest), 0o600))
		out, err := kubectl(strings.Fields(strings.ReplaceAll(step.args, "FILE", file))...)
		require.Contains(t, out, step.out, "kubectl %s: %s%s", step.args, out, err)
		if step.fail == "" {
			require.NotContains(t, strings.ToLower(err), "error", "kubectl %s: %s", step.args, err)
		} else {
			require.Contains(t, err, step.fail, "kubectl %s", step.args)
		}
	}
}

package command

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// TestComplete checks that a shell completes the names in the namespace, except those already given.
func TestComplete(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/tasks.coracle.dev/v1alpha1/namespaces/shop/tasks" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"tasks.coracle.dev/v1alpha1","kind":"TaskList","items":[
{"metadata":{"name":"web"}},{"metadata":{"name":"wash"}},{"metadata":{"name":"eat"}}]}`))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "`+server.URL+`"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "shop"}}]}`), 0o600))
	c := Connector{Kinds: []metav1.APIResource{{
		Group: tasks.GroupVersion.Group, Version: tasks.GroupVersion.Version, Kind: "Task", Name: "tasks", Namespaced: true,
	}}}
	cmd := &cobra.Command{Use: "cancel"}
	c.Flags(cmd)
	cmd.SetContext(t.Context())
	require.NoError(t, cmd.Flags().Set("kubeconfig", file))
	c.Complete(cmd, 2, func() ctrl.ObjectList { return &tasks.TaskList{} })
	complete := func(args []string, start string) []string {
		names, how := cmd.ValidArgsFunction(cmd, args, start)
		require.Equal(t, cobra.ShellCompDirectiveNoFileComp, how)
		return names
	}
	require.Equal(t, []string{"web", "wash", "eat"}, complete(nil, ""))
	require.Equal(t, []string{"web", "wash"}, complete(nil, "w"))
	require.Equal(t, []string{"wash"}, complete([]string{"web"}, "w"))
	require.Empty(t, complete([]string{"web", "wash"}, ""), "the command takes two names")
	server.Close()
	require.Empty(t, complete(nil, ""), "the API server does not answer")
}

// TestNames checks that a command accepts the names of objects in kubectl's forms.
func TestNames(t *testing.T) {
	c := Connector{Kinds: []metav1.APIResource{
		{Name: "resources", SingularName: "resource", ShortNames: []string{"kre"}, Group: "kontrol.coracle.dev"},
		{Name: "bundles", SingularName: "bundle", Group: "kontrol.coracle.dev"},
	}}
	names, err := c.Names([]string{
		"a", "resource/b", "resources/c", "kre/d", "resource.kontrol.coracle.dev/e", "bundles/f",
	}, "resource", "bundle")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c", "d", "e", "bundle/f"}, names)
	for _, arg := range []string{"bundle/f", "pod/x", "resource/", "resource.example.com/a", "/"} {
		_, err = c.Names([]string{arg}, "resource")
		require.EqualError(t, err, `"`+arg+`" does not name a resource, which this command takes: use NAME or resource/NAME`)
	}
}

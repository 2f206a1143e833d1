package commands

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/command/commandtest"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
)

func TestKontrolGet(t *testing.T) {
	other := &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 2},
		Spec: kontrol.ResourceSpec{ClusterSelector: &metav1.LabelSelector{},
			Template: runtime.RawExtension{
				Raw: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop"}}`),
			}},
	}
	c := kontrolCluster(t, nil, settings(kontrol.StateDrifted), other, edge())
	get := func(o KontrolOptions) (string, string, int) {
		return ran(t, func(at command.Terminal) error { return c.Resources(t.Context(), o, at) })
	}
	out, _, _ := get(KontrolOptions{})
	require.Regexp(t,
		`(?m)^settings +ConfigMap/shop/settings +0/1 +Drifted +3 +Correct +- +on edge: .data.color was changed by hand$`, out)
	require.Regexp(t, `(?m)^web +Deployment/shop/web +0/0 +OutOfSync `, out, "nothing has looked at its generation")
	for _, o := range []KontrolOptions{{Kind: "configmap"}, {State: "drifted"}, {Names: []string{"settings"}}} {
		out, _, _ := get(o)
		require.Contains(t, out, "settings")
		require.NotContains(t, out, "web")
	}
	out, _, _ = get(KontrolOptions{Cluster: "edge"})
	require.Contains(t, out, "web", "by its selector")
	out, _, _ = get(KontrolOptions{Names: []string{"settings"}, Output: "yaml"})
	require.Contains(t, out, "kind: Resource\n")
	out, _, _ = get(KontrolOptions{Output: "json"})
	require.Contains(t, out, `"kind": "ResourceList"`)
	_, wrong, code := get(KontrolOptions{State: "fine"})
	require.Equal(t, 1, code)
	require.Contains(t, wrong, `"fine" is not a state: use one of Synced`)
	_, wrong, _ = get(KontrolOptions{Names: []string{"nothing"}})
	require.Contains(t, wrong, "there is no resource nothing")
	_, wrong, _ = get(KontrolOptions{Output: "xml"})
	require.Contains(t, wrong, "is not json or yaml")
	_, none, _ := get(KontrolOptions{Namespace: "empty"})
	require.Contains(t, none, "No resources.")
}

func TestKontrolDescribe(t *testing.T) {
	applied := &kontrol.AppliedState{
		ObjectMeta: metav1.ObjectMeta{Name: "settings.edge"},
		State: kontrol.Applied{Subject: drifted().State.Subject, Generation: 5, Revision: 3,
			Status: kontrol.ApplyFailed, Reason: "Forbidden", Error: "no rights"},
	}
	c := kontrolCluster(t, nil, settings(kontrol.StateDrifted), applied, drifted(), edge())
	out := commandtest.Output(t, func(w io.Writer) error { return c.DescribeResource(t.Context(), "settings", w) })
	require.Regexp(t, `(?m)^State +Drifted$`, out)
	require.Regexp(t,
		`(?m)^edge +Unreachable +Failed: Forbidden +3 +5 +Healthy +3 +5 +1 +0 +cluster edge is not connected yet$`, out)
	require.Regexp(t, `(?m)^settings +edge +\.data\.color +changed +"blue" +"pink" +kubectl-edit +[0-9]+s$`, out)
}

// TestKontrolDriftAnswers checks the exit codes.
func TestKontrolDriftAnswers(t *testing.T) {
	c := kontrolCluster(t, nil, settings(kontrol.StateDrifted), drifted(), edge())
	drift := func(o KontrolOptions) (string, string, int) {
		return ran(t, func(at command.Terminal) error { return c.Drift(t.Context(), o, at) })
	}
	out, _, code := drift(KontrolOptions{})
	require.Equal(t, 1, code)
	require.Contains(t, out, "kubectl-edit")
	out, _, code = drift(KontrolOptions{Output: "json"})
	require.Equal(t, 1, code)
	require.Contains(t, out, `"path": ".data.color"`)
	_, says, code := drift(KontrolOptions{Cluster: "elsewhere"})
	require.Zero(t, code)
	require.Equal(t, "No drift.\n", says)
	_, says, _ = drift(KontrolOptions{Names: []string{"settings"}, Cluster: "edge", Namespace: "shop"})
	require.Empty(t, says)
	c = kontrolCluster(t, nil, settings(kontrol.StateSynced), edge())
	_, says, code = drift(KontrolOptions{})
	require.Zero(t, code)
	require.Equal(t, "No drift is known. These clusters do not answer: edge.\n", says)
	_, _, code = drift(KontrolOptions{Names: []string{"nothing"}})
	require.Equal(t, 2, code)
}

func TestKontrolHistoryAndRollback(t *testing.T) {
	c := kontrolCluster(t, nil, settings(kontrol.StateSynced))
	lines := strings.Split(commandtest.Output(t, func(w io.Writer) error {
		return c.History(t.Context(), "settings", "", w)
	}), "\n")
	require.Regexp(t, `^3 +5 +present +\.data\.color$`, lines[1])
	require.Regexp(t, `^2 +3 +[0-9]+s ago +\.data\.color$`, lines[2])
	require.Regexp(t, `^1 +1 +60m ago +-$`, lines[3])

	roll := func(o RollbackOptions) (string, string, int) {
		o.Name = "settings"
		return ran(t, func(at command.Terminal) error { return c.Rollback(t.Context(), o, at) })
	}
	_, wrong, _ := roll(RollbackOptions{Revision: 9})
	require.Equal(t, "resource settings has no former revision 9: it has 2, 1", wrong)
	_, wrong, _ = roll(RollbackOptions{})
	require.Contains(t, wrong, "--to REVISION")
	out, _, _ := roll(RollbackOptions{Revision: 1, DryRun: true})
	require.Contains(t, out, "-  color: blue\n+  color: red\n")
	for _, o := range []RollbackOptions{{Revision: 1}, {Generation: 3}} {
		_, _, code := roll(o)
		require.Zero(t, code)
		r, err := c.getResource(t.Context(), "settings")
		require.NoError(t, err)
		want := map[int64]string{1: "red", 2: "green"}[*r.Spec.Revision]
		require.NotEmpty(t, want)
		require.Contains(t, string(r.Spec.Template.Raw), want)
	}
	r, err := c.getResource(t.Context(), "settings")
	require.NoError(t, err)
	r.Labels = map[string]string{kontrol.LabelBundle: "site"}
	require.NoError(t, c.Client.Update(t.Context(), r))
	_, wrong, _ = roll(RollbackOptions{Revision: 1})
	require.Contains(t, wrong, "belongs to bundle site")
}

func TestKontrolDiff(t *testing.T) {
	live := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "shop",
			Name:        "settings",
			Annotations: map[string]string{kontrol.AnnotationID: "7"},
		}, Data: map[string]string{"color": "pink", "size": "1"},
	}
	down := interceptor.NewClient(targetCluster(t).(ctrl.WithWatch), interceptor.Funcs{
		Get: func(context.Context, ctrl.WithWatch, ctrl.ObjectKey, ctrl.Object, ...ctrl.GetOption) error {
			return errors.New("dial tcp: connection refused")
		},
	})
	ignoring := settings(kontrol.StateDrifted)
	ignoring.Spec.Ignore = &kontrol.Ignore{Fields: []string{"data.color"}}
	for name, test := range map[string]struct {
		target    ctrl.Client
		resource  *kontrol.Resource
		o         DiffOptions
		out, says string
		code      int
	}{
		"the dry run shows what would change": {
			targetCluster(t, live.DeepCopy()),
			settings(kontrol.StateDrifted),
			DiffOptions{},
			"-  color: pink\n+  color: blue\n",
			"",
			1,
		},
		"ignored fields are none": {targetCluster(t, live.DeepCopy()), ignoring, DiffOptions{}, "", "", 0},
		"what is missing would be made": {
			targetCluster(t), settings(kontrol.StateDrifted), DiffOptions{}, "+  color: blue\n", "", 1,
		},
		"without the cluster, what was seen last": {
			down,
			settings(kontrol.StateDrifted),
			DiffOptions{},
			"-  color: pink\n+  color: blue\n",
			"cannot be reached",
			1,
		},
		"ignored fields are none without it either": {down, ignoring, DiffOptions{}, "", "cannot be reached", 0},
		"since a revision": {
			nil, settings(kontrol.StateDrifted), DiffOptions{Revision: 2}, "-  color: green\n+  color: blue\n", "", 1,
		},
		"since the present one": {
			nil, settings(kontrol.StateDrifted), DiffOptions{Revision: 3}, "", "", 0,
		},
		"a revision that is not kept is an error": {
			nil, settings(kontrol.StateDrifted), DiffOptions{Revision: 8}, "", "no former revision 8", 2,
		},
		"a cluster that does not exist is an error": {
			nil, settings(kontrol.StateDrifted), DiffOptions{Cluster: "none"}, "", "there is no cluster none", 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := kontrolCluster(t, test.target, test.resource, drifted(), edge())
			test.o.Name = "settings"
			out, says, code := ran(t, func(at command.Terminal) error { return c.Diff(t.Context(), test.o, at) })
			require.Equal(t, test.code, code, out+says)
			require.Contains(t, out, test.out)
			require.Contains(t, says, test.says)
			require.NotContains(t, out, "kontrol/")
			require.NotContains(t, out, "more: x", "what others added is no difference")
			require.NotContains(t, out, "managedFields")
		})
	}
	secret := readable(map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"metadata":   map[string]any{"name": "a"},
		"stringData": map[string]any{"k": "hush"},
	})
	require.Equal(t,
		readable(map[string]any{
			"apiVersion": "v1",
			"kind":       "Secret",
			"metadata":   map[string]any{"name": "a"},
			"data":       map[string]any{"k": "aHVzaA=="},
		}), secret)
	require.Regexp(t, `^sha256:[0-9a-f]{16}$`, secret["data"].(map[string]any)["k"])
	require.Equal(t, secret, readable(secret), "hashes of states stay")
}

func TestKontrolWait(t *testing.T) {
	wait := func(c *cluster, o KontrolOptions, state string, timeout time.Duration) (string, string, int) {
		return ran(t, func(at command.Terminal) error { return c.WaitResources(t.Context(), o, state, timeout, at) })
	}
	out, _, code := wait(kontrolCluster(t, nil, settings(kontrol.StateSynced)), KontrolOptions{}, "synced", time.Minute)
	require.Zero(t, code)
	require.Equal(t, "resource settings is Synced (revision 3, generation 5)\n", out)

	_, says, code := wait(kontrolCluster(t, nil, settings(kontrol.StateDrifted)), KontrolOptions{}, "Synced",
		10*time.Millisecond)
	require.Equal(t, 1, code)
	require.Equal(t, "resource settings is Drifted, not Synced: on edge: .data.color was changed by hand\n", says)

	for _, o := range []KontrolOptions{{Names: []string{"nothing"}}, {Kind: "Moon"}} {
		_, _, code = wait(kontrolCluster(t, nil, settings(kontrol.StateDrifted)), o, "Synced", time.Minute)
		require.Equal(t, 2, code)
	}
	_, _, code = wait(kontrolCluster(t, nil), KontrolOptions{}, "Fine", time.Minute)
	require.Equal(t, 2, code)

	// The Resource reaches the state, or is deleted, during the watch.
	for state, change := range map[string]func(*cluster, *kontrol.Resource) error{
		"Synced": func(c *cluster, r *kontrol.Resource) error {
			r.Status.State = kontrol.StateSynced
			return c.Client.Update(t.Context(), r)
		},
		"Deleted": func(c *cluster, r *kontrol.Resource) error { return c.Client.Delete(t.Context(), r) },
	} {
		c := kontrolCluster(t, nil, settings(kontrol.StateDrifted))
		watched := c.Client
		c.Client = interceptor.NewClient(watched, interceptor.Funcs{
			Get: func(ctx context.Context, w ctrl.WithWatch, key ctrl.ObjectKey, o ctrl.Object, opts ...ctrl.GetOption) error {
				err := w.Get(ctx, key, o, opts...)
				c.Client = watched // after the first read, which follows the start of the watch
				return errors.Join(err, change(c, o.DeepCopyObject().(*kontrol.Resource)))
			},
		})
		out, _, code := wait(c, KontrolOptions{}, state, time.Minute)
		require.Zero(t, code)
		require.Contains(t, strings.ToLower(out), "is "+strings.ToLower(state))
	}
}

func TestKontrolClusters(t *testing.T) {
	c := kontrolCluster(t, nil)
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	config := func(user string) {
		require.NoError(t,
			os.WriteFile(file,
				[]byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
"clusters":[{"name":"k","cluster":{"server":"https://10.0.0.1:6443","certificate-authority":"ca.crt"}},{"name":"other","cluster":{"server":"https://10.0.0.2"}}],"users":[{"name":"u","user":`+user+`}]}`), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("the authority"), 0o600))
	add := func(o ClusterOptions) (string, string, int) {
		return ran(t, func(at command.Terminal) error { return c.AddCluster(t.Context(), o, at.Out) })
	}
	for user, says := range map[string]string{
		`{"exec":{"command":"touch","apiVersion":"client.authentication.k8s.io/v1","interactiveMode":"Never"}}`: "exec runs a command",
		`{"auth-provider":{"name":"gcp"}}`: "auth-provider is a plugin",
		`{"tokenFile":"/etc/passwd"}`:      "tokenFile is a file",
	} {
		config(user)
		_, wrong, _ := add(ClusterOptions{Name: "edge", Kubeconfig: file})
		require.Contains(t, wrong, says)
	}
	config(`{"token":"hush"}`)
	out, wrong, code := add(ClusterOptions{Name: "edge", Kubeconfig: file, Labels: []string{"env=prod"}})
	require.Zero(t, code, wrong)
	require.Equal(t, "cluster edge added\n", out)
	var k kontrol.Cluster
	require.NoError(t, c.Client.Get(t.Context(), ctrl.ObjectKey{Name: "edge"}, &k))
	require.Equal(t, "prod", k.Labels["env"])
	var secret corev1.Secret
	require.NoError(t,
		c.Client.Get(t.Context(),
			ctrl.ObjectKey{Namespace: k.Spec.KubeconfigSecret.Namespace, Name: k.Spec.KubeconfigSecret.Name}, &secret))
	got, err := target.ParseKubeconfig(secret.Data[k.Spec.KubeconfigSecret.Key])
	require.NoError(t, err)
	require.Equal(t, []string{"https://10.0.0.1:6443", "hush", "the authority"},
		[]string{got.Host, got.BearerToken, string(got.CAData)})
	require.NotContains(t, string(secret.Data["kubeconfig"]), "10.0.0.2", "only what is needed")

	// The kubeconfig can be replaced, even if its Secret is gone. Nothing else changes.
	config(`{"token":"new"}`)
	for range 2 {
		out, wrong, code = add(ClusterOptions{Name: "edge", Kubeconfig: file})
		require.Zero(t, code, wrong)
		require.Equal(t, "cluster edge has this kubeconfig now\n", out)
		require.NoError(t, c.Client.Get(t.Context(), ctrl.ObjectKeyFromObject(&secret), &secret))
		require.Contains(t, string(secret.Data["kubeconfig"]), "token: new")
		require.NoError(t, c.Client.Delete(t.Context(), &secret))
	}
	_, _, code = add(ClusterOptions{Name: "edge", Kubeconfig: file})
	require.Zero(t, code)
	_, wrong, _ = add(ClusterOptions{Name: "edge", Kubeconfig: file, Labels: []string{"env=test"}})
	require.Contains(t, wrong, "change its labels with")
	_, wrong, _ = add(ClusterOptions{Name: "edge", Kubeconfig: file, SecretNamespace: "default"})
	require.Contains(t, wrong, "which is reached in another way")

	_, wrong, _ = add(ClusterOptions{Name: "this"})
	require.Contains(t, wrong, "--local")
	_, wrong, _ = add(ClusterOptions{Name: "this", Local: true, Labels: []string{"x"}})
	require.Contains(t, wrong, "KEY=VALUE")
	_, _, code = add(ClusterOptions{Name: "this", Local: true})
	require.Zero(t, code)
	out, _, _ = ran(t, func(at command.Terminal) error { return c.Clusters(t.Context(), "", at) })
	require.Regexp(t, `(?m)^edge +Unknown +- +- +- +env=prod +-$`, out)
	require.Regexp(t, `(?m)^this +Unknown +- +\(this one\)`, out)
	for status, seen := range map[metav1.ConditionStatus]string{
		metav1.ConditionTrue: "now", metav1.ConditionFalse: "4m",
	} {
		require.NoError(t, c.Client.Get(t.Context(), ctrl.ObjectKey{Name: "edge"}, &k))
		k.Status.LastSeen = new(metav1.NewTime(time.Now().Add(-4*time.Minute - time.Second)))
		k.Status.Conditions = []metav1.Condition{{Type: kontrol.ConditionReady, Status: status, Reason: "Why"}}
		require.NoError(t, c.Client.Update(t.Context(), &k))
		out, _, _ = ran(t, func(at command.Terminal) error { return c.Clusters(t.Context(), "", at) })
		require.Regexp(t, `(?m)^edge +\w+ +- +- +`+seen, out)
	}

	require.NoError(t, c.Client.Create(t.Context(), settings(kontrol.StateSynced)))
	require.ErrorContains(t, c.RemoveCluster(t.Context(), "edge", io.Discard),
		"cluster edge has 1 resource, such as settings")
	require.NoError(t, c.Client.Delete(t.Context(), settings(kontrol.StateSynced)))
	require.NoError(t, c.RemoveCluster(t.Context(), "edge", io.Discard))
	require.Error(t, c.Client.Get(t.Context(), ctrl.ObjectKeyFromObject(&secret), &secret))
}

// TestKontrolApprove checks that an approval is for the generation that the user has seen.
func TestKontrolApprove(t *testing.T) {
	r := settings(kontrol.StateOutOfSync)
	c := kontrolCluster(t, nil)
	c.Client = fake.NewClientBuilder().WithScheme(c.Client.Scheme()).WithObjects(r).WithStatusSubresource(r).Build()
	approve := func(dry bool) (string, string, int) {
		return ran(t, func(at command.Terminal) error { return c.Approve(t.Context(), r.Name, dry, at) })
	}
	_, text, code := approve(false)
	require.NotZero(t, code)
	require.Contains(t, text, "needs no approval")
	r, err := c.getResource(t.Context(), r.Name)
	require.NoError(t, err)
	r.Spec.Approval = kontrol.ApprovalManual
	require.NoError(t, c.Client.Update(t.Context(), r))
	r.Status.ObservedGeneration = r.Generation - 1
	require.NoError(t, c.Client.Status().Update(t.Context(), r))
	_, text, _ = approve(false)
	require.Contains(t, text, "was not looked at yet")
	r.Status.ObservedGeneration = r.Generation
	require.NoError(t, c.Client.Status().Update(t.Context(), r))
	out, text, _ := approve(true)
	require.Contains(t, out, "approved (dry run)", text)
	out, text, _ = approve(false)
	require.Contains(t, out, "approved\n", text)
	out, _, _ = approve(false)
	require.Contains(t, out, "is approved already")
}

// TestThroughHub checks that a pull cluster is reached through the hub's address with the hub's credentials.
func TestThroughHub(t *testing.T) {
	for host, want := range map[string]string{
		"https://hub:6443":      "https://hub:6443/apis/kontrol.coracle.dev/v1alpha1/clusters/boat/proxy",
		"https://hub/k8s/":      "https://hub/k8s/apis/kontrol.coracle.dev/v1alpha1/clusters/boat/proxy",
		"http://127.0.0.1:8001": "http://127.0.0.1:8001/apis/kontrol.coracle.dev/v1alpha1/clusters/boat/proxy",
	} {
		got, err := throughHub(&rest.Config{Host: host, BearerToken: "t"}, "boat")
		require.NoError(t, err)
		require.Equal(t, want, got.Host)
		require.Equal(t, "t", got.BearerToken)
	}
}

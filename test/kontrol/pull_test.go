package kontrol

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
	"github.com/coracle-dev/coracle/test/wire"
)

// counted counts the requests that an agent forwards, and reports when a watch begins.
type counted struct {
	http.RoundTripper
	watches chan string // the resource versions from which config maps are watched

	mu    sync.Mutex
	lists int // lists of config maps, except lists of one, which only ask for the current version
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()
	of := strings.HasSuffix(req.URL.Path, "/configmaps") && req.Method == http.MethodGet
	if of && q.Get("watch") == "" && q.Get("limit") != "1" {
		c.mu.Lock()
		c.lists++
		c.mu.Unlock()
	}
	res, err := c.RoundTripper.RoundTrip(req)
	if of && q.Get("watch") != "" && err == nil {
		c.watches <- q.Get("resourceVersion")
	}
	return res, err
}

func (c *counted) listed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists
}

// pulled makes a Cluster that connects to the hub itself, and returns the file with its token.
func (h *hub) pulled(name string) string {
	h.t.Helper()
	account := pull.Account + name
	meta := metav1.ObjectMeta{Name: account}
	sa := &corev1.ServiceAccount{ObjectMeta: meta}
	sa.Namespace = "kube-system"
	h.create(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kontrol.ClusterSpec{Pull: true}}, sa,
		&rbacv1.ClusterRole{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{kontrol.GroupVersion.Group}, Resources: []string{"clusters/tunnel"},
					ResourceNames: []string{name}, Verbs: []string{"create"},
				},
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: account}},
		})
	token := &authenticationv1.TokenRequest{}
	require.NoError(h.t, h.SubResource("token").Create(h.t.Context(), sa, token))
	cfg := h.cluster.REST()
	require.NoError(h.t, rest.LoadTLSFiles(cfg))
	file := filepath.Join(h.t.TempDir(), "token")
	require.NoError(h.t, os.WriteFile(file, append([]byte(token.Status.Token+"\n"), cfg.CAData...), 0o600))
	return file
}

// agent connects a target to the hub through a wire until the test ends.
func agent(t testing.TB, g *target, w *wire.Wire, token string) *counted {
	t.Helper()
	api, err := url.Parse(g.cluster.REST().Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(g.cluster.REST())
	require.NoError(t, err)
	c := &counted{RoundTripper: transport, watches: make(chan string, 100)}
	a := &pull.Agent{
		Hubs:      []string{"https://" + w.Address()},
		TokenFile: token,
		Target:    api,
		Transport: c,
		Log:       slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return c
}

// TestATunnelsWatchesGoOn cuts off a cluster that connects to the hub itself, and changes it meanwhile. When it is
// back, its watches must resume at their last revision without a list, and Kontrol must see and repair the changes.
func TestATunnelsWatchesGoOn(t *testing.T) {
	h, g := newHub(t), newTarget(t, "edge")
	u, err := url.Parse(h.cluster.REST().Host)
	require.NoError(t, err)
	way := wire.New(t, u.Host)
	requests := agent(t, g, way, h.pulled("edge"))
	report := resource("left", "edge", "left", "one")
	report.Spec.Mode = kontrol.ModeReport
	h.create(resource("kept", "edge", "kept", "one"), resource("removed", "edge", "removed", "one"), report)
	h.until("in sync", []string{"kept", "removed", "left"}, state(kontrol.StateSynced))
	require.Equal(t, 1, requests.listed())
	require.NotEmpty(t, <-requests.watches)

	for range 2 {
		way.Cut()
		h.until("unreachable", []string{"kept"}, state(kontrol.StateUnreachable))
		change := func(name, value string) {
			t.Helper()
			var m corev1.ConfigMap
			require.NoError(t, g.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: name}, &m))
			m.Data["value"] = value
			require.NoError(t, g.Update(t.Context(), &m, ctrl.FieldOwner("somebody")))
		}
		change("kept", "drift")
		change("left", "drift")
		require.NoError(t,
			g.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "removed"}}))
		way.Mend()
		h.until("drifted", []string{"left"}, state(kontrol.StateDrifted))
		g.becomes(t, map[string]string{"kept": "one@1", "removed": "one@1"})
		h.until("in sync", []string{"kept", "removed"}, state(kontrol.StateSynced))
		change("left", "one")
		h.until("in sync", []string{"left"}, state(kontrol.StateSynced))
		require.NotEmpty(t, <-requests.watches)
	}
	require.Equal(t, 1, requests.listed(), "once, at the beginning")
}

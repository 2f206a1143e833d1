package kontrol

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/test/wire"
)

// pushed makes a target a Cluster that the hub reaches through a wire and a proxy that counts the requests.
func (h *hub) pushed(g *target) (*counted, *wire.Wire) {
	h.t.Helper()
	api, err := url.Parse(g.cluster.REST().Host)
	require.NoError(h.t, err)
	transport, err := rest.TransportFor(g.cluster.REST())
	require.NoError(h.t, err)
	c := &counted{RoundTripper: transport, watches: make(chan string, 1000)}
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(api) },
		Transport:     c,
		FlushInterval: -1,
	})
	proxy.EnableHTTP2 = true
	proxy.StartTLS()
	h.t.Cleanup(func() {
		proxy.CloseClientConnections()
		proxy.Close()
	})
	way := wire.New(h.t, proxy.Listener.Addr().String())
	data, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "x", Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "x"}},
		Clusters: map[string]*clientcmdapi.Cluster{
			"x": {Server: "https://" + way.Address(), CertificateAuthorityData: authority(proxy.Certificate())},
		},
	})
	require.NoError(h.t, err)
	h.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: g.name}, Data: map[string][]byte{"kubeconfig": data},
	},
		&kontrol.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: g.name},
			Spec:       kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: g.name}},
		})
	return c, way
}

func authority(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// TestMinutesOffline cuts off or silences clusters, pushed and pulled ones, for the duration in CORACLE_TEST_OFFLINE,
// such as 4m (hack/nightly.sh fleet). Meanwhile the desired state and the clusters' objects change. Once they are back,
// the clusters must get everything, Kontrol must see and repair the changes there, and must not list anything again.
func TestMinutesOffline(t *testing.T) {
	if os.Getenv("CORACLE_TEST_OFFLINE") == "" {
		t.Skip("takes minutes: set CORACLE_TEST_OFFLINE=4m (hack/nightly.sh fleet does)")
	}
	offline, err := time.ParseDuration(os.Getenv("CORACLE_TEST_OFFLINE"))
	require.NoError(t, err)
	h := newHub(t)
	u, err := url.Parse(h.cluster.REST().Host)
	require.NoError(t, err)
	type edge struct {
		*target
		requests *counted
		way      *wire.Wire
		lose     func()
	}
	var all []edge
	for _, how := range []string{"push-cut", "push-silent", "pull-cut", "pull-silent"} {
		e := edge{target: newTarget(t, how)}
		if how[:4] == "push" {
			e.requests, e.way = h.pushed(e.target)
		} else {
			e.way = wire.New(t, u.Host)
			e.requests = agent(t, e.target, e.way, h.pulled(how))
		}
		if e.lose = e.way.Cut; how[5:] == "silent" {
			e.lose = e.way.Silence
		}
		all = append(all, e)
	}
	each := func(objects ...string) (names []string) {
		for _, e := range all {
			for _, o := range objects {
				names = append(names, e.name+"-"+o)
			}
		}
		return names
	}
	want := func(mode kontrol.Mode, object string) {
		for _, e := range all {
			r := resource(e.name+"-"+object, e.name, object, "one")
			r.Spec.Mode = mode
			h.create(r)
		}
	}
	want(kontrol.ModeCorrect, "kept")
	want(kontrol.ModeCorrect, "removed")
	want(kontrol.ModeCorrect, "edited")
	want(kontrol.ModeReport, "left")
	h.until("in sync", each("kept", "removed", "edited", "left"), state(kontrol.StateSynced))

	for _, e := range all {
		require.Equal(t, 1, e.requests.listed(), e.name)
		e.lose()
	}
	back := time.After(offline)
	change := func(g *target, name, value string) {
		t.Helper()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		require.NoError(t,
			g.Patch(t.Context(), m, ctrl.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"value":%q}}`, value)),
				ctrl.FieldOwner("somebody")))
	}
	for _, e := range all {
		change(e.target, "kept", "drift")
		change(e.target, "left", "drift")
		require.NoError(t,
			e.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "removed"}}))
		r := &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: e.name + "-edited"}}
		require.NoError(t,
			h.Patch(t.Context(), r,
				ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"data":{"value":"two"}}}}`))))
	}
	want(kontrol.ModeCorrect, "made")
	h.until("unreachable", each("kept", "removed", "edited", "left", "made"), state(kontrol.StateUnreachable))

	// Other clients keep writing in the target.
	busy := time.NewTicker(time.Second)
	defer busy.Stop()
	for n, waits := 0, true; waits; n++ {
		select {
		case <-back:
			waits = false
		case <-busy.C:
			for _, e := range all {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("theirs-%d", n)}}
				require.NoError(t, e.Create(t.Context(), m))
			}
		}
	}
	for _, e := range all {
		e.way.Mend()
	}
	has := map[string]string{"kept": "one@1", "removed": "one@1", "edited": "two@2", "made": "one@1", "left": "drift@1"}
	for _, e := range all {
		e.becomes(t, has)
	}
	h.until("in sync", each("kept", "removed", "edited", "made"), state(kontrol.StateSynced))
	h.until("drifted", each("left"), state(kontrol.StateDrifted))
	for _, e := range all {
		require.Equal(t, has, e.values(t), e.name)
		require.Equal(t, 1, e.requests.listed(), "%s: once, at the beginning", e.name)
	}
}

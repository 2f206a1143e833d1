package kontrol_test

import (
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestKontrolLostRequests checks that an object whose requests are lost, while others arrive, is retried after
// growing pauses and delays no other object of its cluster.
func TestKontrolLostRequests(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	other := start(t, controlplane.Options{Log: slog.LevelError, HTTP: true, Bare: true})
	config := other.REST("admin", user.SystemPrivilegedGroup)
	secure, err := rest.TLSConfigFor(config)
	require.NoError(t, err)
	to, err := url.Parse(config.Host)
	require.NoError(t, err)
	way := &http.Transport{TLSClientConfig: secure}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval, proxy.ErrorLog = way, -1, log.New(io.Discard, "", 0)
	tries := make(chan time.Time, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/lost") {
			tries <- time.Now()
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = proxy.ErrorLog
	server.StartTLS()
	t.Cleanup(func() {
		_ = server.Config.Close() // watches do not end by themselves
		way.CloseIdleConnections()
	})
	c.Make(kubeconfigSecret(t, "there", other, func(cfg *clientcmdapi.Config) {
		cfg.Clusters["x"].Server = server.URL
		cfg.Clusters["x"].CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{
			Type: "CERTIFICATE", Bytes: server.Certificate().Raw,
		})
	}), &kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "there"},
		Spec:       kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: "there"}},
	},
		managed("lost", "there", configMapTemplate("lost", "b")))
	var at []time.Time
	for len(at) < 3 {
		select {
		case next := <-tries:
			at = append(at, next)
		case <-time.After(controlplane.Patience):
			t.Fatalf("it was tried %d times", len(at))
		}
	}
	require.GreaterOrEqual(t, at[1].Sub(at[0]), 500*time.Millisecond)
	require.GreaterOrEqual(t, at[2].Sub(at[1]), time.Second)
	c.Make(managed("fine", "there", configMapTemplate("fine", "b")))
	c.in("fine", kontrol.StateSynced)
	controlplane.Until(c, &kontrol.ResourceList{}, "", "lost", func(r *kontrol.Resource) bool {
		return r.Status.State == kontrol.StateOutOfSync && strings.Contains(r.Status.Message, "does not answer")
	})
}

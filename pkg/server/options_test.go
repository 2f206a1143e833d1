package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/pki"
)

type planeAPI struct {
	*Embedded
	rest *rest.Config
	kubernetes.Interface
}

// startAPI runs a control plane over dir until the returned function is called.
func startAPI(t *testing.T, dir string, change func(*config.Config)) (*planeAPI, func()) {
	t.Helper()
	e, err := newAPI(t, dir, change)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	select {
	case <-e.Ready():
	case err := <-ended:
		cancel()
		t.Fatalf("the control plane ended: %v", err)
	}
	a := &planeAPI{Embedded: e}
	a.rest, err = clientcmd.BuildConfigFromFlags("", e.Kubeconfig())
	require.NoError(t, err)
	a.rest.QPS = -1
	c, err := rest.HTTPClientFor(a.rest)
	require.NoError(t, err)
	a.Interface, err = kubernetes.NewForConfigAndClient(a.rest, c)
	require.NoError(t, err)
	return a, func() {
		c.CloseIdleConnections()
		cancel()
		require.NoError(t, <-ended)
	}
}

func newAPI(t *testing.T, dir string, change func(*config.Config)) (*Embedded, error) {
	t.Helper()
	c := config.Default()
	c.DataDir, c.MergeKubeconfig, c.Disable = dir, false, []string{
		config.Controllers, config.Scheduler, config.LoadBalancer, config.Ingresses,
	}
	if change != nil {
		change(&c)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e, err := NewEmbedded(EmbeddedConfig{Config: c, Listener: l, Volatile: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		require.NoError(t, l.Close())
	}
	return e, err
}

// get requests a path with a bearer token, or as the administrator if token is empty.
func (a *planeAPI) get(t *testing.T, token, path string,
	headers ...string) (code int, header http.Header, body string) {
	t.Helper()
	c := rest.CopyConfig(a.rest)
	if token != "" {
		c = rest.AnonymousClientConfig(a.rest)
		c.BearerToken = token
	}
	h, err := rest.HTTPClientFor(c)
	require.NoError(t, err)
	defer h.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.URL()+path, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := h.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := bounded.All(resp.Body, 1<<20)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header, string(text)
}

func (a *planeAPI) token(t *testing.T, seconds int64) *authenticationv1.TokenRequest {
	t.Helper()
	answer, err := a.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	return answer
}

func claims(t *testing.T, token string) (c struct {
	Iss string
	Aud []string
}) {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &c))
	return c
}

// TestIssuerOfYourOwn checks that, after the issuer and key change, earlier tokens are accepted as long as the
// options name their issuer, audience and key.
func TestIssuerOfYourOwn(t *testing.T) {
	dir := t.TempDir()
	a, stop := startAPI(t, dir, nil)
	_, err := a.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	const before, own = "https://kubernetes.default.svc.cluster.local", "https://tokens.example.com"
	old := a.token(t, 7200).Status.Token
	require.Equal(t, before, claims(t, old).Iss)
	stop()

	private, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	text, err := keyutil.MarshalPrivateKeyToPEM(private)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "sa.key")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	former := filepath.Join(pkiDir(dir), "service-account.key")
	changed := func(c *config.Config) {
		c.AccountIssuers, c.APIAudiences = []string{own, before}, []string{"api", before}
		c.AccountSigningKey, c.AccountKeys = file, []string{former, file}
		c.AccountJWKS, c.AccountMaxExpiration = "https://tokens.example.com/keys", time.Hour
	}
	a, stop = startAPI(t, dir, changed)
	answer := a.token(t, 7200)
	require.EqualValues(t, 3600, *answer.Spec.ExpirationSeconds)
	token := answer.Status.Token
	require.Equal(t, own, claims(t, token).Iss)
	require.Equal(t, []string{"api", before}, claims(t, token).Aud)
	for _, token := range []string{token, old} {
		code, _, body := a.get(t, token, "/api/v1/namespaces/default/secrets")
		require.Equal(t, 403, code, body)
		require.Contains(t, body, "system:serviceaccount:default:robot")
	}
	code, _, body := a.get(t, "", "/.well-known/openid-configuration")
	require.Equal(t, 200, code)
	require.JSONEq(t,
		`{"issuer":"https://tokens.example.com","jwks_uri":"https://tokens.example.com/keys","response_types_supported":["id_token"],
		"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","ES384"]}`, body)
	_, _, body = a.get(t, "", "/openid/v1/jwks")
	require.Equal(t, 2, strings.Count(body, `"kid"`), body)
	require.ErrorContains(t, a.plane.process.RotateServiceAccountKey(t.Context(), time.Hour),
		"--service-account-signing-key-file")
	stop()

	a, stop = startAPI(t, dir, func(c *config.Config) { changed(c); c.AccountKeys = nil })
	code, _, _ = a.get(t, old, "/api")
	require.Equal(t, 401, code, "its key is no longer named")
	stop()
	a, stop = startAPI(t, dir, func(c *config.Config) { changed(c); c.AccountIssuers = []string{own} })
	code, _, _ = a.get(t, old, "/api")
	require.Equal(t, 401, code, "its issuer is no longer named")
	stop()
	a, stop = startAPI(t, dir, func(c *config.Config) { c.AccountIssuers = []string{"mine"} })
	code, _, _ = a.get(t, "", "/openid/v1/jwks")
	require.Equal(t, 404, code, "an issuer without a URL is not discoverable")
	_, _, body = a.get(t, "", "/")
	require.NotContains(t, body, "openid")
	stop()

	for want, change := range map[string]func(*config.Config){
		"service-account-signing-key-file " + former + "x": func(c *config.Config) { c.AccountSigningKey = former + "x" },
		"service-account-key-file " + former + "y":         func(c *config.Config) { c.AccountKeys = []string{former + "y"} },
		"no such file": func(c *config.Config) { c.AccountKeys = []string{former + "z"} },
	} {
		for _, bad := range []string{former + "x", former + "y"} {
			require.NoError(t, os.WriteFile(bad, []byte("no key"), 0o600))
		}
		_, err := newAPI(t, dir, change)
		require.ErrorContains(t, err, want)
	}
}

// TestNodePortsOfTheOption checks that Services get ports of --service-node-port-range.
func TestNodePortsOfTheOption(t *testing.T) {
	a, stop := startAPI(t, t.TempDir(), func(c *config.Config) { c.NodePortRange = "20000+1" })
	defer stop()
	service := func(name string, port int32) (*corev1.Service, error) {
		return a.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: port}}}},
			metav1.CreateOptions{})
	}
	_, err := service("outside", 30000)
	require.ErrorContains(t, err, "The range of valid ports is 20000-20001")
	_, err = service("first", 20001)
	require.NoError(t, err)
	s, err := service("second", 0)
	require.NoError(t, err)
	require.EqualValues(t, 20000, s.Spec.Ports[0].NodePort)
	_, err = service("third", 0)
	require.ErrorContains(t, err, "range is full")
}

// TestPagesOfTheServer checks that /statusz, /flagz and profiles are served as upstream serves them, and only to
// authorized users.
func TestPagesOfTheServer(t *testing.T) {
	a, stop := startAPI(t, t.TempDir(), func(c *config.Config) { c.EventTTL = time.Minute })
	defer stop()
	code, header, body := a.get(t, "", "/statusz")
	require.Equal(t, 200, code, body)
	require.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"))
	require.Contains(t, body, "apiserver statusz")
	require.Regexp(t, `Binary version[:= ]+1\.37\.`, body)
	require.Regexp(t, `Paths[:= ]+/flagz /healthz /livez /metrics /readyz /statusz /version`, body)
	code, _, body = a.get(t, "", "/flagz")
	require.Equal(t, 200, code)
	require.Regexp(t, `\nevent-ttl[:= ]+1m0s\n`, body)
	for path, of := range map[string]string{"/statusz": `"binaryVersion":"1.37.`, "/flagz": `"event-ttl":"1m0s"`} {
		kind := strings.ToUpper(path[1:2]) + path[2:]
		code, header, body = a.get(t, "", path, "Accept", "application/json;v=v1beta1;g=config.k8s.io;as="+kind)
		require.Equal(t, 200, code, body)
		require.Equal(t, "application/json;g=config.k8s.io;v=v1beta1;as="+kind, header.Get("Content-Type"))
		require.Contains(t, body, of)
		code, _, body = a.get(t, "", path, "Accept", "application/json")
		require.Equal(t, 406, code, body)
	}
	_, _, body = a.get(t, "", "/debug/pprof") // redirected
	require.Contains(t, body, "goroutine")
	_, _, body = a.get(t, "", "/")
	require.NotContains(t, body, "/debug")

	_, err := a.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	token := a.token(t, 3600).Status.Token
	for _, path := range []string{"/statusz", "/flagz", "/debug/pprof/", "/debug/pprof/cmdline"} {
		code, _, _ := a.get(t, token, path)
		require.Equal(t, 403, code, path)
	}
	_, err = a.RbacV1().ClusterRoleBindings().Create(t.Context(),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "m"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:monitoring"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "robot"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	roles, err := a.RbacV1().ClusterRoles().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=system:monitoring",
	})
	require.NoError(t, err)
	<-roles.ResultChan() // default roles may be written after the first requests
	roles.Stop()
	for path, want := range map[string]int{"/statusz": 200, "/flagz": 200, "/debug/pprof/": 403} {
		code, _, _ := a.get(t, token, path)
		require.Equal(t, want, code, path)
	}
}

// TestRequestsByOptions checks the options for default tolerations and for the shutdown delay.
func TestRequestsByOptions(t *testing.T) {
	a, stop := startAPI(t, t.TempDir(), func(c *config.Config) {
		c.NotReadySeconds, c.UnreachableSeconds, c.Profiling = 7, 8, false
		c.ShutdownDelay = 100 * time.Millisecond
	})
	code, _, _ := a.get(t, "", "/debug/pprof/")
	require.Equal(t, 404, code)
	_, err := a.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod, err := a.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	seconds := map[string]int64{}
	for _, toleration := range pod.Spec.Tolerations {
		seconds[toleration.Key] = *toleration.TolerationSeconds
	}
	require.Equal(t, map[string]int64{"node.kubernetes.io/not-ready": 7, "node.kubernetes.io/unreachable": 8}, seconds)

	require.Eventually(t, func() bool { // default roles may be written after the first requests
		code, _, _ := a.get(t, "", "/readyz")
		return code == 200
	}, time.Minute, 10*time.Millisecond)
	a.plane.apiserver.Leave()
	code, _, body := a.get(t, "", "/readyz")
	require.Equal(t, 500, code)
	require.Contains(t, body, "[-]shutdown failed: reason withheld")
	for _, path := range []string{"/livez", "/healthz", "/api/v1/namespaces"} {
		code, _, _ = a.get(t, "", path)
		require.Equal(t, 200, code, path)
	}
	began := time.Now()
	stop()
	require.GreaterOrEqual(t, time.Since(began), a.plane.process.ShutdownDelay)
}

// TestLingering checks that a process that serves keeps serving for ShutdownDelay, and that one that does not serve
// yet stops at once.
func TestLingering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &process{
			log:     slog.New(slog.DiscardHandler),
			started: make(chan struct{}),
			plane:   &plane{apiserver: &apiserver.Server{}},
		}
		p.ShutdownDelay = time.Minute
		took := func(end func(stop context.CancelFunc)) time.Duration {
			ctx, cancel := context.WithCancel(t.Context())
			later, stop := p.lingering(ctx, false)
			defer stop()
			began := time.Now()
			cancel()
			end(stop)
			<-later.Done()
			return time.Since(began)
		}
		nothing := func(context.CancelFunc) {}
		require.Zero(t, took(nothing), "nothing serves yet")
		close(p.started)
		require.Equal(t, time.Minute, took(nothing))
		require.Equal(t, time.Second, took(func(stop context.CancelFunc) { time.Sleep(time.Second); stop() }), "coracle stop")
		p.plane = nil
		require.Zero(t, took(nothing), "an agent")
	})
}

// TestProxyWithTheAuthorityOfClients checks that the request header CA cannot be the client CA without names: any
// client could then impersonate users by a header.
func TestProxyWithTheAuthorityOfClients(t *testing.T) {
	dir := t.TempDir()
	_, err := pki.Load(pkiDir(dir))
	require.NoError(t, err)
	_, err = newAPI(t, dir, func(c *config.Config) { c.RequestHeaderCA = filepath.Join(pkiDir(dir), "client-ca.crt") })
	require.ErrorContains(t, err, "requestheader-allowed-names")
}

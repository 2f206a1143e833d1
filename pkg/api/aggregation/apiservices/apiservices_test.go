package apiservices

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// fakeServices resolves every Service to one server, and has an EndpointSlice for it.
type fakeServices struct{ at *url.URL }

func (f fakeServices) ResolveEndpoint(string, string, int32) (*url.URL, error) { return f.at, nil }
func (f fakeServices) GetEndpointSlices(string, string) ([]*discoveryv1.EndpointSlice, error) {
	return []*discoveryv1.EndpointSlice{
		{
			Endpoints: []discoveryv1.Endpoint{{}},
			Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(443))}},
		},
	}, nil
}

// world is an API server with the controller, and a server to aggregate.
type world struct {
	t      *testing.T
	client client.Interface
	http   *httptest.Server
	remote *httptest.Server
	// down makes discovery of the remote server fail.
	down atomic.Bool
	seen atomic.Pointer[http.Request]
	// controller runs beside the API server.
	controller *Controller
	// left maps the names of the objects in the namespace "gone" to whether they have a finalizer.
	left atomic.Pointer[map[string]bool]
	// api, if set, serves the remote server's requests.
	api   atomic.Pointer[http.Handler]
	kinds *kind.Catalog
	// dead aborts the connections of requests for objects.
	dead atomic.Bool
}

const wardle = "/apis/wardle.example.com/v1alpha1"

func newWorld(t *testing.T) *world {
	w := &world{t: t}
	authority, err := pki.LoadFrontProxy(t.TempDir())
	require.NoError(t, err)
	w.remote = httptest.NewUnstartedServer(http.HandlerFunc(w.serveRemote))
	w.remote.TLS = &tls.Config{ClientCAs: authority.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	w.remote.StartTLS()
	t.Cleanup(w.remote.Close)
	at, err := url.Parse(w.remote.URL)
	require.NoError(t, err)

	quiet := slog.New(slog.DiscardHandler)
	e := registrytest.Start(t, registrytest.Options{})
	w.client, w.kinds = e.As("admin"), e.Registry.Kinds()
	for _, name := range []string{"default", "kube-system"} {
		require.NoError(t, w.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	srv, err := apiserver.New(apiserver.Config{
		Registry: e.Registry,
		Cache:    e.Cache,
		Kinds:    e.Registry.Kinds(),
		Logger:   quiet,
		Version:  version.Info{GitVersion: "v1.37.1+coracle"},
	})
	require.NoError(t, err)
	source, err := authority.NewSource(pki.Leaf{Name: FrontProxy})
	require.NoError(t, err)
	c, err := New(Config{
		Client: w.client, Server: srv, Kinds: e.Registry.Kinds(), Services: fakeServices{at}, After: srv.Ready(), Log: quiet,
		Trust: func() (Trust, error) {
			return Trust{
				Certificate:   source.Client,
				FrontProxyCAs: authority.Bundle(),
				ClientCAs:     func() []byte { return []byte("client CA") },
			}, nil
		},
	})
	require.NoError(t, err)
	w.controller = c
	runtest.Start(t, c, srv)
	who := &user.DefaultInfo{
		Name:   "jane",
		UID:    "u1",
		Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
		Extra:  map[string][]string{"team": {"blue"}},
	}
	w.http = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		srv.Handler().ServeHTTP(rw, req.WithContext(request.WithUser(req.Context(), who)))
	}))
	t.Cleanup(w.http.Close)
	return w
}

func (w *world) serveRemote(rw http.ResponseWriter, req *http.Request) {
	if api := w.api.Load(); api != nil {
		(*api).ServeHTTP(rw, req)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	switch {
	case req.URL.Path == wardle && w.down.Load():
		http.Error(rw, "down", 500)
	case req.URL.Path == wardle:
		_ = json.NewEncoder(rw).Encode(metav1.APIResourceList{
			GroupVersion: "wardle.example.com/v1alpha1", APIResources: []metav1.APIResource{
				{
					Name: "flunders", SingularName: "flunder", Namespaced: true, Kind: "Flunder",
					Verbs: metav1.Verbs{"get", "list", "watch", "delete", "deletecollection"},
				}},
		})
	case req.URL.Path == wardle+"/namespaces/prod/flunders/evil":
		http.Redirect(rw, req, wardle+"/namespaces/prod/flunders/victim", http.StatusTemporaryRedirect)
	case req.URL.Path == wardle+"/namespaces/gone/flunders":
		w.serveObjects(rw, req)
	case req.URL.Path == "/openapi/v2":
		_, _ = fmt.Fprintf(rw,
			`{"swagger":"2.0","info":{"title":"t","version":"1"},"paths":{"%s/flunders":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.wardle.Flunder"}}}}},
			"/api/v1/pods":{"get":{"summary":"evil"}}},"definitions":{"io.wardle.Flunder":{"type":"object"}}}`, wardle)
	case req.URL.Path == "/openapi/v3":
		_, _ = fmt.Fprintf(rw, `{"paths":{%q:{"serverRelativeURL":"/openapi/v3%s?hash=1"}}}`, wardle[1:], wardle)
	case req.Header.Get("Upgrade") != "":
		conn, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		w.seen.Store(req)
		_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " +
			req.Header.Get("Upgrade") + "\r\n\r\n")
		_ = buffered.Flush()
		line, _ := buffered.ReadString('\n')
		_, _ = buffered.WriteString("echo " + line)
		_ = buffered.Flush()
	default:
		body, _ := io.ReadAll(io.LimitReader(req.Body, 1<<20))
		w.seen.Store(req)
		_, _ = fmt.Fprintf(rw, `{"method":%q,"path":%q,"query":%q,"body":%q}`, req.Method, req.URL.Path, req.URL.RawQuery,
			body)
	}
}

func (w *world) do(method, path, body string, header ...string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, strings.NewReader(body))
	require.NoError(w.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	require.NoError(w.t, err)
	return resp.StatusCode, string(data)
}

// register creates the Service and the APIService of the remote server.
func (w *world) register() {
	w.t.Helper()
	ctx := w.t.Context()
	require.NoError(w.t,
		w.client.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "wardle"},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Name: "https", Port: 443, TargetPort: intstr.FromInt32(443)}},
			}}))
	require.NoError(w.t, w.client.Create(ctx, w.service()))
}

func (w *world) service() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1alpha1.wardle.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: "wardle.example.com", Version: "v1alpha1", GroupPriorityMinimum: 2000, VersionPriority: 200,
			InsecureSkipTLSVerify: true,
			Service:               &apiregistrationv1.ServiceReference{Namespace: "default", Name: "wardle"}},
	}
}

// until waits until an APIService's condition Available has the status and reason.
func (w *world) until(name string, status apiregistrationv1.ConditionStatus, reason string) {
	w.t.Helper()
	var s apiregistrationv1.APIService
	require.Eventually(w.t, func() bool {
		s = apiregistrationv1.APIService{}
		if w.client.Get(context.Background(), ctrl.ObjectKey{Name: name}, &s) != nil || len(s.Status.Conditions) == 0 {
			return false
		}
		return s.Status.Conditions[0].Status == status && s.Status.Conditions[0].Reason == reason
	}, 2*time.Minute, 5*time.Millisecond, "%s", name)
}

func TestRequestsAreForwarded(t *testing.T) {
	w := newWorld(t)
	code, _ := w.do("GET", wardle+"/namespaces/d/flunders", "")
	require.Equal(t, 404, code)
	w.register()
	w.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")

	_, body := w.do("GET", "/apis/apiregistration.k8s.io/v1/apiservices", "", "Accept",
		"application/json;as=Table;g=meta.k8s.io;v=v1")
	require.Contains(t, body, `"cells":["v1alpha1.wardle.example.com","default/wardle","True",`)
	_, body = w.do("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.wardle.example.com", "", "Accept",
		"application/json;as=Table;g=meta.k8s.io;v=v1")
	require.Contains(t, body, `"name":"Available"`)
	code, body = w.do("PATCH", "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.wardle.example.com?fieldManager=me",
		`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1alpha1.wardle.example.com"},"spec":{"nonsense":1}}`,
		"Content-Type", "application/apply-patch+yaml")
	require.Equal(t, 400, code, body)
	require.Contains(t, body, ".spec.nonsense: field not declared in schema")

	code, body = w.do("POST", wardle+"/namespaces/d/flunders?dryRun=All", `{"kind":"Flunder"}`, "X-Remote-User",
		"system:admin", "X-Remote-Group", "system:masters",
		"Authorization", "Bearer secret", "Content-Type", "application/json")
	require.Equal(t, 200, code, body)
	require.JSONEq(t,
		`{"method":"POST","path":"`+wardle+`/namespaces/d/flunders","query":"dryRun=All","body":"{\"kind\":\"Flunder\"}"}`,
		body)
	seen := w.seen.Load().Header
	require.Equal(t, []string{"jane"}, seen["X-Remote-User"])
	require.Equal(t, []string{user.SystemPrivilegedGroup, user.AllAuthenticated}, seen["X-Remote-Group"])
	require.Equal(t, []string{"blue"}, seen["X-Remote-Extra-Team"])
	require.Empty(t, seen["Authorization"])

	// Check all forms of discovery, and OpenAPI.
	_, body = w.do("GET", "/apis", "")
	require.Contains(t, body, `"wardle.example.com/v1alpha1"`)
	_, body = w.do("GET", "/apis/wardle.example.com", "")
	require.Contains(t, body, `"kind":"APIGroup"`)
	_, body = w.do("GET", wardle, "")
	require.Contains(t, body, "flunders")
	_, body = w.do("GET", "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	require.Contains(t, body, `"resource":"flunders"`)
	_, body = w.do("GET", "/openapi/v2", "")
	require.Contains(t, body, `"`+wardle+`/flunders":{"get"`)
	require.Contains(t, body, `"io.wardle.Flunder":{"type":"object"}`)
	require.Contains(t, body, `"/api/v1/namespaces/{namespace}/pods"`)
	require.NotContains(t, body, "evil")
	code, _ = w.do("GET", "/openapi/v2", "", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	require.Equal(t, 200, code)
	_, body = w.do("GET", "/openapi/v3", "")
	require.Contains(t, body, wardle+"?hash=1")
	_, body = w.do("GET", "/openapi/v3"+wardle+"?hash=1", "")
	require.Contains(t, body, `"path":"/openapi/v3`+wardle)
}

func TestUpgradesAreForwarded(t *testing.T) {
	w := newWorld(t)
	w.register()
	w.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.http.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn,
		"GET %s/namespaces/d/flunders/x/console HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n", wardle)
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 101, resp.StatusCode)
	_, err = fmt.Fprintln(conn, "hello")
	require.NoError(t, err)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "echo hello\n", line)
	require.Equal(t, "jane", w.seen.Load().Header.Get("X-Remote-User"))
}

// A dead server blocks neither discovery nor clients that iterate over all kinds (kubernetes/kubernetes#83332).
func TestADeadServer(t *testing.T) {
	w := newWorld(t)
	w.register()
	w.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	w.down.Store(true)
	require.NoError(t, w.client.Update(t.Context(), func() *corev1.Service { // a change of the Service triggers a check
		s := &corev1.Service{}
		require.NoError(t, w.client.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "wardle"}, s))
		s = s.DeepCopy()
		s.Labels = map[string]string{"a": "b"}
		return s
	}()))
	w.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	code, body := w.do("GET", wardle+"/namespaces/d/flunders", "")
	require.Equal(t, 503, code)
	require.Contains(t, body, "service unavailable")
	code, body = w.do("GET", "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	require.Equal(t, 200, code)
	require.Contains(t, body, `"resource":"flunders"`)
	require.Contains(t, body, `"freshness":"Stale"`)
	require.NoError(t, w.client.Delete(t.Context(), w.service()))
	require.Eventually(t, func() bool {
		_, body := w.do("GET", "/apis", "")
		return !strings.Contains(body, "wardle")
	}, 2*time.Minute, 5*time.Millisecond)
}

func TestLocalAPIServicesAndTrust(t *testing.T) {
	w := newWorld(t)
	w.until("v1.", apiregistrationv1.ConditionTrue, "Local")
	w.until("v1.apps", apiregistrationv1.ConditionTrue, "Local")
	var config corev1.ConfigMap
	require.Eventually(t, func() bool {
		return w.client.Get(t.Context(), ctrl.ObjectKey{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
			&config) == nil
	}, 2*time.Minute, 5*time.Millisecond)
	require.Equal(t, "client CA", config.Data["client-ca-file"])
	require.Equal(t, `["front-proxy-client"]`, config.Data["requestheader-allowed-names"])
	block, _ := pem.Decode([]byte(config.Data["requestheader-client-ca-file"]))
	_, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)

	// The server serves its own kinds itself, even if an APIService delegates them. It restores that APIService.
	s := &apiregistrationv1.APIService{}
	require.NoError(t, w.client.Get(t.Context(), ctrl.ObjectKey{Name: "v1.apps"}, s))
	s = s.DeepCopy()
	s.Spec.Service, s.Spec.InsecureSkipTLSVerify = &apiregistrationv1.ServiceReference{
		Namespace: "default", Name: "wardle",
	}, true
	require.NoError(t, w.client.Update(t.Context(), s))
	w.until("v1.apps", apiregistrationv1.ConditionTrue, "Local")
	code, body := w.do("GET", "/apis/apps/v1/deployments", "")
	require.Equal(t, 200, code, body)
}

// serveObjects deletes or lists the objects in the namespace "gone".
func (w *world) serveObjects(rw http.ResponseWriter, req *http.Request) {
	if w.dead.Load() {
		panic(http.ErrAbortHandler)
	}
	w.seen.Store(req)
	list := metav1.PartialObjectMetadataList{}
	stay := map[string]bool{}
	for name, held := range *w.left.Load() {
		o := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if held {
			o.Finalizers, stay[name] = []string{"example.com/hold"}, true
		}
		list.Items = append(list.Items, o)
	}
	if req.Method == http.MethodDelete {
		w.left.Store(&stay)
	}
	_ = json.NewEncoder(rw).Encode(list)
}

func TestObjectsOfADeletedNamespace(t *testing.T) {
	w := newWorld(t)
	w.left.Store(&map[string]bool{"a": false, "b": true})
	require.Empty(t, w.controller.Empty(t.Context(), "gone"), "nothing is registered")
	w.register()
	w.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	left := w.controller.Empty(t.Context(), "gone")
	require.Len(t, left, 1)
	require.NoError(t, left[0].Err)
	require.Equal(t, "flunders.wardle.example.com", left[0].Resource)
	require.Equal(t, 1, left[0].Count)
	require.Equal(t, map[string]int{"example.com/hold": 1}, left[0].Finalizers)
	require.Equal(t, "system:serviceaccount:kube-system:namespace-controller", w.seen.Load().Header.Get("X-Remote-User"))

	w.dead.Store(true)
	require.Empty(t, w.controller.Empty(t.Context(), "gone"), "a dead server does not keep a namespace")
	w.dead.Store(false)
	w.left.Store(&map[string]bool{})
	require.Empty(t, w.controller.Empty(t.Context(), "gone"))
}

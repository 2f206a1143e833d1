package customresources

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

// world is a server with custom resources, without a socket.
type world struct {
	t      testing.TB
	store  *store.Store
	kinds  *kind.Catalog
	cache  *cache.Cache
	client client.Interface
	http   *httptest.Server
	stop   []func()
}

func newWorld(t testing.TB, dir string) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		quiet = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	w := &world{t: t, kinds: kind.NewCatalog(assembled.Kinds())}
	var err error
	w.store, err = store.New(store.Config{Dir: dir, Logger: quiet})
	require.NoError(t, err)
	w.stop = append(w.stop, runtest.Start(t, w.store))
	w.cache, err = cache.New(cache.Config{Kinds: w.kinds, Source: w.store, Logger: quiet})
	require.NoError(t, err)
	w.stop = append(w.stop, runtest.Start(t, w.cache))
	reg, err := registry.New(registry.Config{Kinds: w.kinds, Store: w.store, Cache: w.cache, Logger: quiet})
	require.NoError(t, err)
	clients := local.New(reg, w.cache, w.kinds)
	require.NoError(t, admission.Install(admission.Plugins{}, reg, clients))
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	w.client = clients.For(admin)
	c, err := New(Config{Client: w.client, Kinds: w.kinds, Log: quiet})
	require.NoError(t, err)
	srv, err := apiserver.New(apiserver.Config{
		Registry: reg,
		Cache:    w.cache,
		Kinds:    w.kinds,
		Logger:   quiet,
		Version:  version.Info{GitVersion: "v1.37.1+coracle"},
	})
	require.NoError(t, err)
	w.stop = append(w.stop, runtest.Start(t, c), runtest.Start(t, srv))
	w.http = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		srv.Handler().ServeHTTP(rw, req.WithContext(request.WithUser(req.Context(), admin)))
	}))
	t.Cleanup(w.http.Close)
	return w
}

// end stops the server, so that another one can use the same directory.
func (w *world) end() {
	w.http.CloseClientConnections()
	for i := len(w.stop) - 1; i >= 0; i-- {
		w.stop[i]()
	}
}

type reply struct {
	code   int
	header http.Header
	body   string
}

func (r reply) message(t testing.TB) string {
	t.Helper()
	var s metav1.Status
	require.NoError(t, json.Unmarshal([]byte(r.body), &s), "%d %s", r.code, r.body)
	return s.Message
}

func (w *world) do(method, path, body string, headers ...string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, strings.NewReader(body))
	require.NoError(w.t, err)
	req.Header.Set("Content-Type", "application/yaml")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer res.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(res.Body)
	require.NoError(w.t, err)
	return reply{res.StatusCode, res.Header, b.String()}
}

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// define creates a definition from YAML and waits until it is Established.
func (w *world) define(text string) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	made := w.do("POST", definitionsPath, text)
	require.Equal(w.t, http.StatusCreated, made.code, made.body)
	var crd apiextensionsv1.CustomResourceDefinition
	require.NoError(w.t, yaml.Unmarshal([]byte(text), &crd))
	return w.until(crd.Name, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
}

// until waits until a definition's condition has the status.
func (w *world) until(name string, condition apiextensionsv1.CustomResourceDefinitionConditionType,
	status apiextensionsv1.ConditionStatus) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	return w.wait(name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		for _, c := range crd.Status.Conditions {
			if c.Type == condition && c.Status == status {
				return true
			}
		}
		return false
	})
}

// wait waits until ok accepts the definition. It passes nil for a deleted definition.
func (w *world) wait(name string,
	ok func(*apiextensionsv1.CustomResourceDefinition) bool) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	events, err := w.client.Watch(w.t.Context(), &apiextensionsv1.CustomResourceDefinitionList{},
		ctrl.MatchingFields{"metadata.name": name})
	require.NoError(w.t, err)
	defer events.Stop()
	// A watch does not report deletions before its start.
	var now apiextensionsv1.CustomResourceDefinition
	if err := w.client.Get(w.t.Context(), ctrl.ObjectKey{Name: name}, &now); apierrors.IsNotFound(err) && ok(nil) {
		return nil
	}
	for e := range events.ResultChan() {
		crd, is := e.Object.(*apiextensionsv1.CustomResourceDefinition)
		require.True(w.t, is, "%v", e.Object)
		if e.Type == "DELETED" {
			crd = nil
		}
		if crd != nil && ok(crd) || crd == nil && ok(nil) {
			return crd
		}
	}
	w.t.Fatalf("%s did not reach the expected state", name)
	return nil
}

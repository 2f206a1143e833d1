package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

func newTestPlane(t *testing.T) *plane {
	t.Helper()
	c, dir := config.Default(), t.TempDir()
	c.DataDir, c.RunDir, c.NodeName, c.NodeIP, c.MergeKubeconfig = filepath.Join(dir, "data"), filepath.Join(dir, "run"),
		"n1", "192.0.2.1", false
	keys, err := pki.Load(pkiDir(c.DataDir))
	require.NoError(t, err)
	l, err := newPlane(&process{
		Config:  c,
		log:     slog.New(slog.DiscardHandler),
		began:   time.Now(),
		metrics: newRegistries(),
		started: make(chan struct{}),
	}, keys)
	require.NoError(t, err)
	return l
}

func begin(t *testing.T, c run.Component) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	running := true
	stop = func() {
		if running {
			running = false
			cancel()
			require.NoError(t, <-ended, c.Name())
		}
	}
	t.Cleanup(stop)
	select {
	case <-c.Ready():
	case err := <-ended:
		require.NoError(t, err, c.Name())
	}
	return stop
}

func failing(t *testing.T, l *plane, endpoint string) (names []string, well bool) {
	t.Helper()
	w := httptest.NewRecorder()
	l.apiserver.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+endpoint+"?verbose", nil))
	for line := range strings.Lines(w.Body.String()) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			names = append(names, name)
		}
	}
	require.Contains(t, w.Body.String(), "]ping ok")
	return names, w.Code == http.StatusOK
}

// fails waits until the failing checks that `of` selects are the wanted ones, because other checks may fail on a
// loaded machine. It returns whether the endpoint returned 200.
func fails(t *testing.T, l *plane, endpoint string, of func([]string) []string, want []string) (well bool) {
	t.Helper()
	var last []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		var names []string
		names, well = failing(t, l, endpoint)
		if last = of(names); slices.Equal(want, last) {
			return well
		}
	}
	require.Equal(t, want, last, endpoint)
	return well
}

func TestHealthWhileStarting(t *testing.T) {
	l := newTestPlane(t)
	is := func(endpoint string, want ...string) {
		t.Helper()
		well := fails(t, l, endpoint, func(names []string) []string { return names }, want)
		require.Equal(t, len(want) == 0, well)
	}
	unhealthy := func() (names []string) {
		for _, part := range l.parts() {
			if part.Check(t.Context()) != nil {
				names = append(names, part.Name)
			}
		}
		return names
	}
	const roles = "poststarthook/rbac/bootstrap-roles"
	begin(t, l.store)
	begin(t, l.cache)
	is("livez")
	begin(t, l.bootstrap)
	is("readyz", roles, "controllers", "scheduler")
	begin(t, l.roles)
	<-l.roles.written
	is("readyz", "controllers", "scheduler")
	require.Equal(t, []string{"controller-manager", "scheduler"}, unhealthy())
	begin(t, l.scheduler)
	is("readyz", "controllers")
	begin(t, l.controllers)
	is("readyz")
	is("livez")
	require.Empty(t, unhealthy())
}

// TestHealthOfStoreAndCache checks that failing checks are named, and that /livez fails only if a restart would help.
func TestHealthOfStoreAndCache(t *testing.T) {
	l := newTestPlane(t)
	stopStore := begin(t, l.store)
	stopCache := begin(t, l.cache)
	namespace := func(name string) {
		t.Helper()
		c := l.client("writer", user.SystemPrivilegedGroup)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		before, err := l.store.Revision(ctx)
		require.NoError(t, err)
		go func() { done <- c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}) }()
		require.Eventually(t, func() bool {
			now, err := l.store.Revision(ctx)
			return err == nil && now > before
		}, time.Minute, time.Millisecond)
		cancel()
		<-done
	}
	is := func(endpoint string, want ...string) {
		t.Helper()
		fails(t, l, endpoint, func(names []string) (known []string) {
			for _, name := range names {
				if !strings.HasPrefix(name, "poststarthook/") && name != "controllers" && name != "scheduler" {
					known = append(known, name)
				}
			}
			return known
		}, want)
	}
	namespace("one")
	is("readyz")
	stopCache()
	namespace("two")
	is("readyz", "informer-sync")
	is("livez")
	err := l.cacheFollows(t.Context())
	require.ErrorContains(t, err, "the cache has stopped")
	// A cache that runs but lags: it follows another store, which has no changes.
	behind := newTestPlane(t)
	begin(t, behind.store)
	begin(t, behind.cache)
	err = (&plane{store: l.store, cache: behind.cache}).cacheFollows(t.Context())
	require.ErrorContains(t, err, "the cache is at revision")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	stopStore()
	is("readyz", "etcd", "etcd-readiness", "informer-sync")
	is("livez", "etcd")
	require.Error(t, l.parts()[1].Check(t.Context()))
}

// TestHealthHasUpstreamsChecks: tools look for these lines of kube-apiserver, as upstream's test of health handlers
// does.
func TestHealthHasUpstreamsChecks(t *testing.T) {
	l := newTestPlane(t)
	begin(t, l.store)
	begin(t, l.cache)
	for _, endpoint := range []string{"healthz", "livez", "readyz"} {
		w := httptest.NewRecorder()
		l.apiserver.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+endpoint+"?verbose", nil))
		for _, name := range []string{
			"ping", "log", "etcd", "autoregister-completion", "poststarthook/start-apiserver-admission-initializer",
			"poststarthook/generic-apiserver-start-informers", "poststarthook/start-apiextensions-informers",
			"poststarthook/start-apiextensions-controllers", "poststarthook/crd-informer-synced",
			"poststarthook/bootstrap-controller", "poststarthook/start-system-namespaces-controller",
			"poststarthook/start-service-ip-repair-controllers", "poststarthook/scheduling/bootstrap-system-priority-classes",
			"poststarthook/start-cluster-authentication-info-controller", "poststarthook/start-kube-aggregator-informers",
			"poststarthook/apiservice-registration-controller", "poststarthook/apiservice-status-local-available-controller",
			"poststarthook/apiservice-status-remote-available-controller", "poststarthook/kube-apiserver-autoregistration",
			"poststarthook/apiservice-openapi-controller", "poststarthook/storage-readiness",
		} {
			require.Contains(t, w.Body.String(), "[+]"+name+" ok\n", endpoint)
		}
	}
}

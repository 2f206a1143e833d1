// Package cost measures the processor time of requests to an API server in this process: of each attack of a table,
// with bodies that grow to 3 MB, and of bodies in which a random field of a random kind grows. One request may take
// a second, and twice the input may take at most three times as long.
//
//	go test ./test/abuse/cost                                              what `make test` runs, in ten seconds
//	CORACLE_TEST_COST=10m go test -timeout 1h -v ./test/abuse/cost         all attacks, then random ones for ten minutes
//	CORACLE_TEST_COST=1s go test -v -run 'TestAttacks/env' ./test/abuse/cost    some attacks
package cost

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/api/customresources"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

const (
	largest = 3<<20 - 1<<10 // bytes of a body
	most    = time.Second   // of one request
	steep   = 3             // times as long for twice the input
	// visible is the time from which growth counts. Below it are costs that are quadratic up to a limit: a strategic
	// merge of 2,000 items (0.4 s), and CEL rules about all items of a list until they are interrupted (0.5 s).
	visible = 600 * time.Millisecond
)

// world is an API server and, unless it is bare, the control plane around it.
type world struct {
	*controlplane.Cluster
	t       *testing.T
	handler http.Handler
	tenant  user.Info
	admin   user.Info
}

func newWorld(t *testing.T, bare bool) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	w := &world{
		t:       t,
		Cluster: controlplane.Start(t, controlplane.Options{Agent: !bare, Bare: bare, Log: slog.LevelError + 1}),
		tenant:  &user.DefaultInfo{Name: "tenant", Groups: []string{user.AllAuthenticated}},
		admin:   &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
	}
	crds, err := customresources.New(customresources.Config{Client: w, Kinds: w.Engine.Kinds, Log: quiet})
	require.NoError(t, err)
	w.Run(crds)
	srv, err := apiserver.New(apiserver.Config{
		Registry: w.Engine.Registry, Cache: w.Engine.Cache, Kinds: w.Engine.Kinds, Logger: quiet, Version: version.Info(),
	})
	require.NoError(t, err)
	w.Run(srv)
	w.handler = srv.Handler()
	w.Make(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "most"}, Rules: []rbacv1.PolicyRule{{
			Verbs:     []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"},
			APIGroups: []string{"*"}, Resources: []string{"*"},
		}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "most"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "most"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}}},
	)
	if bare {
		w.Make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "work"}})
	}
	for _, r := range base {
		answer := w.send(r)
		require.Less(t, answer.Code, 300, "%s: %s", r, answer.Body)
	}
	return w
}

// call is a request.
type call struct{ method, path, media, body string }

func (r call) String() string { return r.method + " " + r.path[:min(len(r.path), 120)] }

// send makes a request as a user who may do everything, but not grant it.
func (w *world) send(r call) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(w.t.Context(), r.method, r.path, strings.NewReader(r.body))
	if media, accept, ok := strings.Cut(r.media, " "); ok {
		req.Header.Set("Accept", accept)
		req.Header.Set("Content-Type", media)
	} else if r.media != "" {
		req.Header.Set("Content-Type", r.media)
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, req.WithContext(request.WithUser(req.Context(), w.tenant)))
	return answer
}

// used returns the processor time of the process.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type sample struct {
	size int
	code int
	cpu  time.Duration
	said string
}

func (s sample) String() string {
	return fmt.Sprintf("%4d KB %4d %6s", s.size>>10, s.code, s.cpu.Round(time.Millisecond))
}

// measure returns the processor time of a request; if it is more than enough, the least of three times.
func (w *world) measure(r call, enough time.Duration) sample {
	s := sample{size: len(r.body) + len(r.path), cpu: time.Hour}
	for range 3 {
		runtime.GC()
		before := used()
		answer := w.send(r)
		s.cpu = min(s.cpu, used()-before)
		s.code = answer.Code
		s.said = string(answer.Body.Bytes()[:min(answer.Body.Len(), 600)])
		if s.cpu < enough || s.cpu > 10*most {
			break
		}
	}
	return s
}

// allowed returns the limit of a request. Definitions and the kinds below are an administrator's, and their cost grows
// with their size alone: 960 KB of schemas took 0.9 to 1.1 s on a loaded machine.
func allowed(r call) time.Duration {
	for _, of := range []string{crds, "/apis/admissionregistration.k8s.io/", "/apis/resource.k8s.io/v1/resourceslices"} {
		if strings.HasPrefix(r.path, of) {
			return 2 * most
		}
	}
	return most
}

// judge measures an attack as it grows, and around the size from which it is refused.
func (w *world) judge(t *testing.T, from int, make func(n int) call) {
	t.Helper()
	var all []sample
	last, most := sample{}, allowed(make(from))
	for n := from; ; n *= 2 {
		n = min(n, largest)
		s := w.measure(make(n), min(most, max(visible, steep*last.cpu)))
		if last.code != 0 && s.code != last.code && n > 2*from {
			for lo, hi := n/2, n; hi-lo > n/16; {
				mid := (lo + hi) / 2
				between := w.measure(make(mid), most)
				all = append(all, between)
				if between.code == last.code {
					lo = mid
				} else {
					hi = mid
				}
			}
		}
		all = append(all, s)
		if last.code == s.code && s.cpu > visible && s.cpu > steep*last.cpu && s.size < 3*last.size {
			t.Errorf("superlinear: %s, then %s", last, s)
		}
		last = s
		if n == largest || s.cpu > 2*most {
			break
		}
	}
	var worst sample
	for _, s := range all {
		if s.cpu > worst.cpu {
			worst = s
		}
	}
	var text bytes.Buffer
	for _, s := range all {
		fmt.Fprintf(&text, " | %s", s)
	}
	said := worst.said
	if i := strings.Index(said, `"message"`); i >= 0 {
		said = said[i:]
	}
	t.Logf("worst%s%s\n    %.300s", worst, &text, said)
	if worst.cpu > most {
		t.Errorf("too slow: %s", worst)
	}
}

// long reports whether all attacks are wanted, and for how long random ones.
func long() (time.Duration, bool) {
	d, err := time.ParseDuration(os.Getenv("CORACLE_TEST_COST"))
	return d, err == nil
}

package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check is an exec probe whose result the test sets.
type check struct {
	mu    sync.Mutex
	ok    bool
	asked []time.Duration // since the container's start
}

func (c *check) set(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ok = ok
}

func (c *check) times() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Duration(nil), c.asked...)
}

func bench(t *testing.T, f func(t *testing.T, m *Manager, c *check, target Target)) {
	synctest.Test(t, func(t *testing.T) {
		c := &check{}
		start := time.Now()
		rt := fake.New(fake.Config{Programs: map[string]fake.Program{"check": func(context.Context, *fake.Process) int {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.asked = append(c.asked, time.Since(start))
			if c.ok {
				return 0
			}
			return 1
		}}})
		require.NoError(t,
			rt.Create(t.Context(), runtime.Spec{ID: "c", PodUID: "u", Image: "busybox", Command: []string{"sleep", "1000000"}}))
		require.NoError(t, rt.Start(t.Context(), "c"))
		m := New(Config{Runtime: rt, Changed: func(types.UID) {}, Client: NewClient(Guard{})})
		defer func() {
			m.StopAll()
			require.NoError(t, rt.Remove(context.Background(), "c"))
			synctest.Wait()
		}()
		f(t, m, c, Target{UID: "u", ContainerID: "c", StartedAt: start, Container: &corev1.Container{Name: "c"}})
	})
}

func probe(period, failures int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}},
		PeriodSeconds: period, FailureThreshold: failures, SuccessThreshold: 1, TimeoutSeconds: 1}
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestReadinessIsEagerAtFirst(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.ReadinessProbe = probe(10, 3)
		require.False(t, m.Watch(t.Context(), target).Ready)
		after(100 * time.Millisecond)
		c.set(true)
		after(100 * time.Millisecond)
		require.True(t, m.Watch(t.Context(), target).Ready)
		c.set(false)
		after(25 * time.Second)
		require.True(t, m.Watch(t.Context(), target).Ready, "two failures are not three")
		after(10 * time.Second)
		require.False(t, m.Watch(t.Context(), target).Ready)
	})
}

func TestEager(t *testing.T) {
	tcp := func(period int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}, PeriodSeconds: period}
	}
	for _, test := range []struct {
		probe      *corev1.Probe
		probes     int
		longest    time.Duration
		atTheStart int // in the first seconds
	}{
		{probe(1, 3), 5, 400 * time.Millisecond, 5},
		{probe(10, 3), 8, 3200 * time.Millisecond, 6},
		{tcp(1), 17, mostPause, 17},
		{tcp(10), 23, 3200 * time.Millisecond, 17},
	} {
		start := time.Now()
		now, n, longest, early := start, 1, time.Duration(0), 1
		for e := newEager(test.probe, start); ; n++ {
			pause, ok := e.next(now)
			if !ok {
				break
			}
			now, longest = now.Add(pause), max(longest, pause)
			if now.Sub(start) < earlyTime {
				early++
			}
		}
		require.Equal(t, test.probes, n, "%v", test.probe)
		require.Equal(t, test.longest, longest, "%v", test.probe)
		require.Equal(t, test.atTheStart, early, "%v", test.probe)
		require.Less(t, now.Sub(start), max(time.Duration(test.probe.PeriodSeconds)*time.Second, earlyTime))
	}
}

func TestInitialDelayIsKept(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.ReadinessProbe = probe(5, 3)
		target.Container.ReadinessProbe.InitialDelaySeconds = 30
		c.set(true)
		m.Watch(t.Context(), target)
		after(29 * time.Second)
		require.Empty(t, c.times())
		after(2 * time.Second)
		require.Equal(t, []time.Duration{30 * time.Second}, c.times())
	})
}

func TestLivenessNeedsItsThreshold(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		grace := int64(3)
		target.Container.LivenessProbe = probe(10, 3)
		target.Container.LivenessProbe.TerminationGracePeriodSeconds = &grace
		require.True(t, m.Watch(t.Context(), target).Ready, "no readiness probe")
		after(19 * time.Second)
		require.False(t, m.Watch(t.Context(), target).Failed)
		after(2 * time.Second)
		r := m.Watch(t.Context(), target)
		require.True(t, r.Failed)
		require.Equal(t, &grace, r.Grace)
		require.Len(t, c.times(), 3, "it is not asked again")
	})
}

func TestStartupHoldsTheOthersBack(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.StartupProbe = probe(10, 6)
		target.Container.LivenessProbe = probe(1, 1)
		require.False(t, m.Watch(t.Context(), target).Started)
		after(35 * time.Second)
		require.False(t, m.Watch(t.Context(), target).Failed)
		c.set(true)
		after(10 * time.Second)
		r := m.Watch(t.Context(), target)
		require.True(t, r.Started)
		require.True(t, r.Ready)
	})
}

func TestStartupGivesUp(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.StartupProbe = probe(10, 3)
		m.Watch(t.Context(), target)
		after(31 * time.Second)
		require.True(t, m.Watch(t.Context(), target).Failed)
	})
}

func TestReadinessGoesOnWhileAContainerEnds(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.ReadinessProbe, target.Container.LivenessProbe = probe(2, 1), probe(1, 1)
		c.set(true)
		m.Watch(t.Context(), target)
		after(10 * time.Second)
		require.True(t, m.Watch(t.Context(), target).Ready)
		m.End("c")
		c.set(false)
		after(3 * time.Second)
		target.Ending = true
		r := m.Watch(t.Context(), target)
		require.False(t, r.Ready)
		require.False(t, r.Failed, "its liveness is not asked for any more")
		c.set(true)
		after(2 * time.Second)
		require.True(t, m.Watch(t.Context(), target).Ready)
		m.Stop("c")
		asked := len(c.times())
		after(time.Minute)
		require.Len(t, c.times(), asked)
	})
}

// An error of the node or of the specification is reported, and counts neither as a failure nor as a success.
func TestErrorsAreNoResults(t *testing.T) {
	for name, handler := range map[string]corev1.ProbeHandler{
		"nothing":     {},
		"program":     {Exec: &corev1.ExecAction{Command: []string{"no-such-program"}}},
		"port":        {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("none")}},
		"named port":  {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("none")}},
		"port number": {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(70_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			bench(t, func(t *testing.T, m *Manager, _ *check, target Target) {
				var mu sync.Mutex // both probes report
				var events []string
				target.Event = func(_, reason, message string) {
					mu.Lock()
					defer mu.Unlock()
					events = append(events, reason+": "+message)
				}
				target.Container.LivenessProbe = probe(1, 1)
				target.Container.LivenessProbe.ProbeHandler = handler
				target.Container.ReadinessProbe = probe(1, 1)
				target.Started, target.Ready = true, true
				m.Watch(t.Context(), target)
				after(10 * time.Second)
				r := m.Watch(t.Context(), target)
				require.False(t, r.Failed)
				require.False(t, r.Ready, "the other probe fails")
				m.StopAll()
				require.Contains(t, strings.Join(events, "\n"),
					"Unhealthy: Liveness probe errored and resulted in unknown state: ")
				require.NotContains(t, strings.Join(events, "\n"), "Liveness probe failed")
			})
		})
	}
}

// Consecutive results count: a success in between starts anew.
func TestThresholdsAreConsecutive(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.ReadinessProbe = probe(10, 2)
		target.Container.ReadinessProbe.SuccessThreshold = 3
		c.set(true)
		m.Watch(t.Context(), target)
		for _, step := range []struct{ ok, ready bool }{ // by period; the first success was at once
			{true, false}, {true, true}, {false, true}, {true, true}, {false, true}, {false, false}, {true, false},
			{true, false}, {false, false}, {true, false}, {true, false}, {true, true},
		} {
			after(5 * time.Second)
			c.set(step.ok)
			after(5 * time.Second)
			require.Equal(t, step.ready, m.Watch(t.Context(), target).Ready, "%+v", step)
		}
	})
}

// An agent that starts while a container is ending runs only the container's readiness probe.
func TestWatchOfAnEndingContainer(t *testing.T) {
	bench(t, func(t *testing.T, m *Manager, c *check, target Target) {
		target.Container.StartupProbe, target.Container.LivenessProbe, target.Container.ReadinessProbe = probe(1, 1), probe(1,
			1), probe(1, 1)
		target.Started, target.Ready, target.Ending = true, true, true
		require.True(t, m.Watch(t.Context(), target).Ready)
		after(5 * time.Second)
		r := m.Watch(t.Context(), target)
		require.False(t, r.Ready)
		require.False(t, r.Failed)
	})
}

// Up to ten redirects to the same host are followed; a redirect to another host is success with a warning.
func TestRedirects(t *testing.T) {
	var web *httptest.Server
	web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
		case "/local":
			if n > 0 {
				http.Redirect(w, r, "/local?n="+strconv.Itoa(n-1), http.StatusFound)
			}
		case "/lost":
			http.Redirect(w, r, web.URL+"/none", http.StatusFound)
		case "/headers":
			w.Header().Set("X-Large", strings.Repeat("x", 1<<20))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer web.Close()
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(t, err)
	for path, tt := range map[string]struct {
		events []string
		ready  bool
	}{
		"/local?n=9":  {ready: true},
		"/local?n=10": {events: []string{"Unhealthy: Readiness probe failed: "}},
		"/lost":       {events: []string{"Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 404"}},
		"/away": {
			ready: true, events: []string{"ProbeWarning: Readiness probe warning: Probe terminated redirects, Response body: "},
		},
		"/headers": {events: []string{"Unhealthy: Readiness probe failed: "}},
	} {
		t.Run(path, func(t *testing.T) {
			changed, events := make(chan struct{}, 1), make(chan string, 8)
			m := New(Config{Runtime: fake.New(fake.Config{}), Changed: func(types.UID) { changed <- struct{}{} },
				Client: NewClient(Guard{})})
			defer m.client.CloseIdleConnections()
			defer m.StopAll()
			target := Target{UID: "u", ContainerID: "c", PodIP: "127.0.0.1", StartedAt: time.Now(), Ready: !tt.ready,
				Event: func(_, reason, message string) { events <- reason + ": " + message },
				Container: &corev1.Container{
					ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 30,
						ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.Parse(port)}}},
				}}
			target.Started = true
			m.Watch(t.Context(), target)
			<-changed
			require.Equal(t, tt.ready, m.Watch(t.Context(), target).Ready)
			for _, want := range tt.events {
				require.Contains(t, <-events, want)
			}
			if len(tt.events) == 0 {
				require.Empty(t, events)
			}
		})
	}
}

func TestOverTheWire(t *testing.T) {
	m := New(Config{Runtime: fake.New(fake.Config{}), Client: NewClient(Guard{})})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ok" || r.Header.Get("X-A") != "b" || r.UserAgent() != "kube-probe/1.37" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer web.Close()
	_, portText, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(t, err)
	port, err := strconv.Atoi(portText)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := grpc.NewServer()
	hs := health.NewServer()
	healthpb.RegisterHealthServer(g, hs)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	defer func() { g.Stop(); <-done }()
	grpcPort := int32(l.Addr().(*net.TCPAddr).Port)
	missing := "missing"
	target := Target{
		PodIP:     "127.0.0.1",
		Container: &corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}},
	}
	get := func(path, port string) corev1.ProbeHandler {
		return corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{
				Path:        path,
				Port:        intstr.Parse(port),
				HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: "b"}},
			},
		}
	}
	for name, tt := range map[string]struct {
		h   corev1.ProbeHandler
		err string
	}{
		"http":           {get("/ok", "web"), ""},
		"http 500":       {get("/no", portText), "statuscode: 500"},
		"http no port":   {get("/ok", "none"), `"none"`},
		"tcp":            {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse("web")}}, ""},
		"tcp refused":    {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}, "refused"},
		"grpc":           {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: grpcPort}}, ""},
		"grpc unhealthy": {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: grpcPort, Service: &missing}}, "unhealthy"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.do(t.Context(), &corev1.Probe{ProbeHandler: tt.h, TimeoutSeconds: 5}, target)
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.err)
			}
		})
	}
	m.client.CloseIdleConnections()
}

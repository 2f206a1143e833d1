package shutdown

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func podOf(name string, priority *int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Priority: priority},
	}
}

func TestGroups(t *testing.T) {
	pods := []*corev1.Pod{
		podOf("none", nil), podOf("low", new(int32(-7))), podOf("middle", new(int32(1500))), podOf("exact", new(int32(1000))),
		podOf("below", new(int32(999))), podOf("critical", new(int32(2_000_001_000))),
	}
	for _, c := range []struct {
		periods []config.ShutdownPeriod
		want    string
	}{
		{
			[]config.ShutdownPeriod{
				{Priority: 0, Period: 20 * time.Second}, {Priority: 2_000_000_000, Period: 10 * time.Second},
			},
			"20s[none low middle exact below] 10s[critical]",
		},
		{
			[]config.ShutdownPeriod{{Priority: 1000, Period: time.Second}, {Priority: 3000, Period: 2 * time.Second}},
			"1s[none low middle exact below] 2s[critical]",
		},
		{
			[]config.ShutdownPeriod{
				{Priority: -100, Period: time.Second},
				{Priority: -5, Period: 2 * time.Second},
				{Priority: 1000, Period: 3 * time.Second},
			},
			"1s[low] 2s[none below] 3s[middle exact critical]",
		},
		{[]config.ShutdownPeriod{{Priority: 5, Period: time.Second}}, "1s[none low middle exact below critical]"},
	} {
		var got []string
		for _, g := range groups(c.periods, pods) {
			var names []string
			for _, p := range g.pods {
				names = append(names, p.Name)
			}
			got = append(got, fmt.Sprintf("%s%v", g.period, names))
		}
		require.Equal(t, c.want, strings.Join(got, " "))
	}
}

func TestPeriodsAreSharesOfWhatIsAllowed(t *testing.T) {
	periods := []config.ShutdownPeriod{{Priority: 0, Period: 20 * time.Second}, {Priority: 7, Period: 10 * time.Second}}
	require.Equal(t, periods, within(periods, 30*time.Second))
	require.Equal(t,
		[]config.ShutdownPeriod{{Priority: 0, Period: 4 * time.Second}, {Priority: 7, Period: 2 * time.Second}},
		within(periods, 6*time.Second))
	require.Zero(t, total(within(periods, 0)))
	require.Equal(t, 500*time.Millisecond, reserve(5*time.Second))
	require.Equal(t, time.Second, reserve(time.Hour))
}

// TestShutdown checks that pods end by priority, critical ones last, each group within its period, and that the
// inhibitor is then released.
func TestShutdown(t *testing.T) {
	machine(t, func(w *world) {
		<-w.m.Looked()
		require.Equal(t, 1, w.inhibitors())
		require.False(t, w.m.ShuttingDown())
		w.takes["two"] = 3 * time.Second
		w.takes["critical"] = time.Hour
		w.set(func() { w.state.ShuttingDown = true })
		require.True(t, w.m.ShuttingDown())
		require.Equal(t, 1, w.inhibitors())
		time.Sleep(time.Minute)
		require.Equal(t,
			[]string{
				"down true 0s", "NodeShutdown 0s", "terminate one by 19s 0s", "terminate two by 19s 0s",
				"terminate critical by 9s 3s", "flush 13s", "released 13s",
			}, w.happened())
		require.True(t, w.m.ShuttingDown())

		w.set(func() {})
		require.Empty(t, w.happened(), "it is in progress already")
		w.set(func() { w.state.ShuttingDown = false })
		require.Equal(t, []string{"down false 0s", "NodeShutdown 0s"}, w.happened())
		require.Equal(t, 1, w.inhibitors(), "the next shutdown is delayed, too")
		delete(w.takes, "critical")
		w.set(func() { w.state.ShuttingDown = true })
		require.Equal(t, 1, w.inhibitors())
		time.Sleep(time.Minute)
		require.Zero(t, w.inhibitors())
	})
}

// TestShortDelay checks that periods shrink in proportion if logind's delay is shorter.
func TestShortDelay(t *testing.T) {
	machine(t, func(w *world) {
		w.takes["one"], w.takes["critical"] = time.Hour, time.Hour
		w.set(func() { w.state.ShuttingDown, w.state.Delay = true, 3*time.Second })
		time.Sleep(time.Minute)
		require.Equal(t,
			[]string{
				"down true 0s", "NodeShutdown 0s", "terminate one by 1.8s 0s", "terminate two by 1.8s 0s",
				"terminate critical by 900ms 2s", "flush 3s", "released 3s",
			}, w.happened())
	})
}

// TestCancelledShutdown checks that pods that are not terminating yet keep running.
func TestCancelledShutdown(t *testing.T) {
	machine(t, func(w *world) {
		w.takes["one"] = 10 * time.Second
		w.set(func() { w.state.ShuttingDown = true })
		w.happened()
		w.set(func() { w.state.ShuttingDown = false })
		require.False(t, w.m.ShuttingDown())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"down false 0s", "NodeShutdown 0s", "released 0s"}, w.happened(),
			"the former inhibitor, after the next was taken")
		require.Equal(t, 1, w.inhibitors())
	})
}

// TestShutdownInProgress checks that an agent that starts during a shutdown ends the pods, once they are known,
// without an inhibitor.
func TestShutdownInProgress(t *testing.T) {
	machine(t, func(w *world) {
		w.end()
		w.happened()
		w.state.ShuttingDown, w.known = true, make(chan struct{})
		w.start()
		<-w.m.Looked()
		require.True(t, w.m.ShuttingDown())
		time.Sleep(500 * time.Millisecond)
		close(w.known)
		require.Equal(t,
			[]string{
				"down true 0s", "NodeShutdown 0s", "terminate one by 19s 500ms", "terminate two by 19s 500ms",
				"terminate critical by 9s 500ms", "flush 500ms",
			}, w.happened())
		require.Zero(t, w.inhibitors())

		w.end()
		w.known = make(chan struct{}) // no API server answers
		w.start()
		time.Sleep(2 * time.Second)
		require.Contains(t, w.happened(), "terminate one by 19s 1s", "those that are known")
	})
}

// TestLogindRestarts checks that each process of logind gets an inhibitor, and that one is always held.
func TestLogindRestarts(t *testing.T) {
	machine(t, func(w *world) {
		w.set(func() { w.absent = true })
		require.Equal(t, 1, w.inhibitors(), "it outlives logind")
		w.set(func() { w.absent, w.state.Instance = false, "b" })
		require.Equal(t, []string{"released 0s"}, w.happened())
		require.Equal(t, 1, w.inhibitors())
		require.Equal(t, 1, w.connects(), "on the same connection")

		w.set(func() { w.state.ShuttingDown = true })
		w.set(func() { w.absent = true })
		require.True(t, w.m.ShuttingDown(), "logind ends like other services")
	})
}

// TestBusRestarts checks that the Manager connects again, with growing pauses.
func TestBusRestarts(t *testing.T) {
	machine(t, func(w *world) {
		w.mu.Lock()
		w.refuse = errors.New("connection refused")
		w.mu.Unlock()
		close(w.dials[0].lost)
		time.Sleep(time.Hour)
		require.InDelta(t, 65, w.connects(), 5, "once a minute in the end")
		require.Equal(t, 1, w.inhibitors())
		w.mu.Lock()
		w.refuse, w.state.ShuttingDown = nil, true
		w.mu.Unlock()
		time.Sleep(time.Minute)
		require.True(t, w.m.ShuttingDown(), "what happened meanwhile is seen")
		time.Sleep(time.Minute)
		require.Zero(t, w.inhibitors())
	})
}

// TestWithoutABus checks that the Manager waits for a bus on a machine without one, and retries if the bus does not
// work yet.
func TestWithoutABus(t *testing.T) {
	machine(t, func(w *world) {
		w.end()
		w.refuse, w.asked = fs.ErrNotExist, 0
		w.start()
		<-w.m.Looked()
		time.Sleep(24 * time.Hour)
		require.Equal(t, 1, w.connects())
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		close(w.bus)
		synctest.Wait()
		require.Equal(t, 1, w.inhibitors())

		w.end()
		w.refuse, w.asked = errors.New("permission denied"), 0
		w.start()
		<-w.m.Looked()
		time.Sleep(10 * time.Second)
		require.Greater(t, w.connects(), 2)
	})
}

// TestTimesOfShutdowns checks the metrics during a shutdown, after the pods have ended, and in the next process.
func TestTimesOfShutdowns(t *testing.T) {
	machine(t, func(w *world) {
		shows := func(start, end time.Time) {
			t.Helper()
			unix := func(at time.Time) int64 {
				if at.IsZero() {
					return 0
				}
				return at.Unix()
			}
			require.NoError(t, testutil.GatherAndCompare(w.m.c.Metrics.(prometheus.Gatherer), strings.NewReader(fmt.Sprintf(`
# HELP kubelet_graceful_shutdown_end_time_seconds Last graceful shutdown end time since unix epoch in seconds
# TYPE kubelet_graceful_shutdown_end_time_seconds gauge
kubelet_graceful_shutdown_end_time_seconds %d
# HELP kubelet_graceful_shutdown_start_time_seconds Last graceful shutdown start time since unix epoch in seconds
# TYPE kubelet_graceful_shutdown_start_time_seconds gauge
kubelet_graceful_shutdown_start_time_seconds %d
`, unix(end), unix(start)))))
		}
		shows(time.Time{}, time.Time{})
		w.takes["one"] = 5 * time.Second
		time.Sleep(time.Hour)
		began := time.Now()
		w.set(func() { w.state.ShuttingDown = true })
		shows(began, time.Time{})
		time.Sleep(time.Minute)
		shows(began, began.Add(5*time.Second))
		w.end()
		w.state.ShuttingDown = false
		w.start()
		shows(began, began.Add(5*time.Second))

		began = time.Now()
		w.set(func() { w.state.ShuttingDown = true })
		shows(began, time.Time{})
		require.NoError(t, os.WriteFile(w.file, []byte("{"), 0o600))
		w.end()
		w.state.ShuttingDown = false
		w.start()
	})
}

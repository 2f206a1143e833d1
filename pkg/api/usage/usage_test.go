package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fake is a node that uses half a core, with containers that use a tenth of a core.
type fake struct {
	reads int
	start time.Time
	err   error
	text  func(cpu float64) string
}

func (f *fake) read(context.Context, string) ([]byte, error) {
	f.reads++
	if f.err != nil {
		return nil, f.err
	}
	seconds := time.Since(f.start).Seconds()
	if f.text != nil {
		return []byte(f.text(seconds)), nil
	}
	labels := `{container="c",namespace="ns",pod="p"}`
	return fmt.Appendf(nil,
		"# HELP x\nnode_cpu_usage_seconds_total %g\nnode_memory_working_set_bytes "+
			"1048576\ncontainer_cpu_usage_seconds_total%s %g\n"+
			"container_memory_working_set_bytes%s 4096\ncontainer_start_time_seconds%s 1000\n", 100+seconds/2, labels,
		7+seconds/10, labels, labels), nil
}

var testNode = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}

func testPod(name, node string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
	}
	return p
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{start: time.Now()}
		c := New(f.read, slog.New(slog.DiscardHandler))
		ask := func() {
			t.Helper()
			nodes := c.Nodes(t.Context(), []*corev1.Node{testNode})
			require.Len(t, nodes, 1)
			require.Equal(t, "500m", nodes[0].Usage.Cpu().String())
			require.Equal(t, "1Mi", nodes[0].Usage.Memory().String())
			require.Equal(t, "b", nodes[0].Labels["a"])
			pods := c.Pods(t.Context(), []*corev1.Pod{
				testPod("p", "n", "c"), testPod("other", "n", "c"), testPod("waits", "", "c"),
			})
			require.Len(t, pods, 1, "pods without samples are absent")
			require.InDelta(t, 0.1, pods[0].Containers[0].Usage.Cpu().AsApproximateFloat64(), 1e-6)
			require.Equal(t, "4Ki", pods[0].Containers[0].Usage.Memory().String())
		}
		ask()
		require.Equal(t, 2, f.reads)
		ask()
		require.Equal(t, 2, f.reads, "not read again within the resolution")
		time.Sleep(resolution)
		ask()
		require.Equal(t, 3, f.reads)
		time.Sleep(time.Hour)
		require.Equal(t, 3, f.reads, "not read without requests")
		ask()
		require.Equal(t, 5, f.reads, "hour-old readings are not used")
	})
}

// A node's readings of pods that are bound to other nodes are ignored.
func TestANodeSpeaksForItsOwnPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{start: time.Now()}
		c := New(func(ctx context.Context, node string) ([]byte, error) {
			if node == "honest" {
				return nil, nil
			}
			return f.read(ctx, node)
		}, slog.New(slog.DiscardHandler))
		require.Empty(t, c.Pods(t.Context(), []*corev1.Pod{testPod("p", "honest", "c"), testPod("x", "liar", "c")}))
	})
}

func TestAFailingNodeIsNotAskedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{err: errors.New("down")}
		c := New(f.read, slog.New(slog.DiscardHandler))
		for range 5 {
			require.Empty(t, c.Nodes(t.Context(), []*corev1.Node{testNode}))
		}
		require.Equal(t, 1, f.reads)
		time.Sleep(resolution)
		require.Empty(t, c.Nodes(t.Context(), []*corev1.Node{testNode}))
		require.Equal(t, 2, f.reads)
	})
}

func TestNodesThatAreGoneAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{start: time.Now()}
		c := New(f.read, slog.New(slog.DiscardHandler))
		c.Nodes(t.Context(), []*corev1.Node{testNode})
		time.Sleep(forget + time.Second)
		c.Nodes(t.Context(), []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "other"}}})
		require.Len(t, c.nodes, 1)
	})
}

func TestARestartedContainerIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{start: time.Now()}
		f.text = func(s float64) string {
			l := `{container="c",namespace="ns",pod="p"}`
			return fmt.Sprintf("container_cpu_usage_seconds_total%s %g\ncontainer_memory_working_set_bytes%s "+
				"1\ncontainer_start_time_seconds%s %g\n", l, 10-s, l, l, s)
		}
		c := New(f.read, slog.New(slog.DiscardHandler))
		require.Empty(t, c.Pods(t.Context(), []*corev1.Pod{testPod("p", "n", "c")}))
	})
}

// Whatever a node reports, no usage is negative, infinite or unbounded.
func TestHostileAnswers(t *testing.T) {
	for name, text := range map[string]string{
		"negative":          "node_cpu_usage_seconds_total -1\n",
		"not a number":      "node_cpu_usage_seconds_total NaN\n",
		"infinite":          "node_memory_working_set_bytes +Inf\n",
		"huge":              "node_memory_working_set_bytes 1e300\n",
		"no value":          "node_memory_working_set_bytes\n",
		"words":             "the node is fine\n",
		"labels do not end": `container_cpu_usage_seconds_total{container="c` + "\n",
		"too many labels":   "x{" + strings.Repeat(`a="b",`, 17) + "} 1\n",
		"time":              "node_cpu_usage_seconds_total 1 soon\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(text), time.Now())
			require.Error(t, err)
			require.Less(t, len(err.Error()), 300)
		})
	}
	var b strings.Builder
	for i := range maxSeries + 1 {
		fmt.Fprintf(&b, "container_cpu_usage_seconds_total{container=\"c%d\",namespace=\"n\",pod=\"p\"} 1\n", i)
	}
	_, err := Parse([]byte(b.String()), time.Now())
	require.ErrorIs(t, err, errTooMany)
	_, _, ok := between(Sample{At: time.Unix(1, 0)}, Sample{At: time.Unix(2, 0), CPU: mostValue})
	require.False(t, ok, "no machine is that large")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("node_cpu_usage_seconds_total 1 " +
		"5\ncontainer_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text, time.Unix(1, 0))
		if err == nil && (r.Node.CPU < 0 || len(r.Containers) > maxSeries) {
			t.Fatal(r)
		}
	})
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestPercentile(t *testing.T) {
	var all []time.Duration
	for i := 20; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	for p, want := range map[float64]time.Duration{0: 1, 50: 10, 99: 20, 100: 20} {
		require.Equal(t, want, percentile(all, p), "p%v", p)
	}
	require.Equal(t, time.Duration(7), percentile([]time.Duration{7}, 50))
	require.Zero(t, percentile(nil, 50))
}

func TestPrint(t *testing.T) {
	figures := []figure{
		millis("get", 150*time.Microsecond, 0.2),
		{Name: "creates", Value: 1234.5, Unit: "/s", Budget: 1500, More: true, Note: "slow"},
		millis("other", 3*time.Second, 0),
	}
	var out bytes.Buffer
	require.NoError(t, print(&out, "table", figures))
	var lines [][]string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Fields(line))
	}
	require.Equal(t, [][]string{
		{"WHAT", "MEASURED", "BUDGET"},
		{"get", "0.15", "ms", "<", "0.2", "ms", "ok"},
		{"creates", "1234", "/s", ">", "1500", "/s", "MISSED", "slow"},
		{"other", "3000", "ms", "-"},
	}, lines)
	out.Reset()
	require.NoError(t, print(&out, "json", figures[:1]))
	require.JSONEq(t, `[{"name":"get","value":0.15,"unit":"ms","budget":0.2}]`, out.String())
}

func TestReadPage(t *testing.T) {
	list := corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}}
	for _, text := range []string{"small", strings.Repeat("x", manyBytes), strings.Repeat("y", manyBytes)} {
		list.Items = append(list.Items, corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"value": text},
		})
	}
	inner, err := list.Marshal()
	require.NoError(t, err)
	raw, err := (&runtime.Unknown{Raw: inner}).Marshal()
	require.NoError(t, err)
	n, next, err := readPage(append([]byte("k8s\x00"), raw...))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, "more", next)
	_, _, err = readPage([]byte("{}"))
	require.Error(t, err)
	torn, err := (&runtime.Unknown{Raw: inner[:len(inner)-1]}).Marshal()
	require.NoError(t, err)
	_, _, err = readPage(append([]byte("k8s\x00"), torn...))
	require.Error(t, err)
}

func TestProcess(t *testing.T) {
	n, ended, err := parseTicks("12 (a) b) c) S 1 1 1 0 -1 4194560 1 2 3 4 50 7 8 9 20 0 1 0 100")
	require.NoError(t, err)
	require.Equal(t, 57, n)
	require.Equal(t, 17, ended)
	_, _, err = parseTicks("12 (x) S 1")
	require.Error(t, err)
	kib, err := rollup(os.Getpid(), "Pss:")
	require.NoError(t, err)
	require.Positive(t, kib)
	require.Contains(t, withChildren([]int{os.Getppid()}), os.Getpid())
}

// The processor time of a child still counts for its parent after the child has ended.
func TestUsage(t *testing.T) {
	k := &kontrolBench{cluster: &cluster{options: options{children: true}}}
	before := k.used()
	c := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	require.NoError(t, c.Run())
	took := c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	require.Greater(t, took, 50*time.Millisecond, "the command is too short to measure")
	now := k.used()
	require.GreaterOrEqual(t, now[2].Duration-before[2].Duration, took-3*time.Second/userHZ, "except for rounding")
	k.per(1, "try", before)
	require.Len(t, k.figures, 1)

	k.options.pids = fmt.Sprint(c.Process.Pid) // the process has ended
	require.False(t, k.used()[0].known)
	before[0].known = true
	k.per(1, "try", before)
	require.Len(t, k.figures, 2, "only the bench's figures")
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{{"-o", "xml"}, {"-only", "nothing"}, {"-kubeconfig", "/nonexistent"}} {
		require.Error(t, bench(context.Background(), args, io.Discard, io.Discard), "%v", args)
	}
}

func TestPairs(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printPairs(&out, []pair{
		{figure: figure{Name: "get", Value: 2, Unit: "ms"}, Other: 3, Ratio: 1.5, Wanted: 2},
		{figure: figure{Name: "creates", Value: 400, Unit: "/s", More: true}, Other: 100, Ratio: 4},
	}))
	var lines [][]string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Fields(line))
	}
	require.Equal(t, [][]string{
		{"WHAT", "THIS", "BESIDE", "TIMES", "BETTER", "WANTED"},
		{"get", "2", "ms", "3", "ms", "1.50", "2", "MISSED"},
		{"creates", "400", "/s", "100", "/s", "4.00", "-"},
	}, lines)
	require.Equal(t, 3.0, median([]float64{9, 1, 3}))
	require.Zero(t, median(nil))
}

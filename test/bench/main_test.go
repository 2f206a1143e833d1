package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

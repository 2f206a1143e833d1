package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

func TestInspectScheduleTable(t *testing.T) {
	r := socket.ScheduleReport{
		Namespace: "shop", Name: "web", SchedulerName: "default-scheduler", Ours: true, NodeCount: 2, Fitting: 1,
		Filters: []socket.ScheduleFilter{
			{Name: "TaintToleration", Applies: true}, {Name: "NodePorts"}, {Name: "NodeResourcesFit", Applies: true},
		},
		Scores: []socket.ScheduleScore{{Name: "ImageLocality", Weight: 1}, {Name: "NodeAffinity", Weight: 2}},
		Nodes: []socket.ScheduleNode{
			{
				Name: "a", Fits: true, Filters: map[string]string{"TaintToleration": "ok", "NodeResourcesFit": "ok"},
				Scores: map[string]int64{"ImageLocality": 3, "NodeAffinity": 200}, Total: 203,
			},
			{
				Name:    "b",
				Filters: map[string]string{"TaintToleration": "ok", "NodeResourcesFit": "Insufficient cpu, Too many pods"},
			},
		},
	}
	var out bytes.Buffer
	require.NoError(t, printSchedule(r, &out))
	require.Equal(t, `Pod shop/web is not on a node yet: 1/2 nodes fit.
Filters that apply to it: TaintToleration, NodeResourcesFit.
Filters that do not apply to it: NodePorts.

NODE  FITS  REFUSED BY        REASONS
a     yes   -                 -
b     no    NodeResourcesFit  Insufficient cpu, Too many pods

NODE  TOTAL  SCORES
a     203    ImageLocality=3, NodeAffinity(x2)=200
`, out.String())

	r.Ours, r.SchedulerName, r.Node = false, "other", "b"
	r.Summary, r.Nodes = "0/2 nodes are available: 2 Insufficient cpu.", r.Nodes[1:]
	out.Reset()
	require.NoError(t, printSchedule(r, &out))
	require.Contains(t, out.String(), `Pod shop/web is on node b; if it were scheduled now
Its scheduler is "other", not Coracle's; by Coracle's default profile: 0/2 nodes are available: 2 Insufficient cpu.
`)
	require.NotContains(t, out.String(), "TOTAL")
}

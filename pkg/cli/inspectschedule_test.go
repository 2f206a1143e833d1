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
Filters that do not apply to it: NodePorts.

NODE  FITS  TaintToleration  NodeResourcesFit  REASONS
a     yes   ok               ok                -
b     no    ok               refuses           Insufficient cpu, Too many pods

NODE  TOTAL  ImageLocality  NodeAffinity (x2)
a     203    3              200
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

// A pod that cannot start gets a next step, whatever it waits for.
func TestInspectScheduleSaysWhatToDo(t *testing.T) {
	refused := func(filter string) socket.ScheduleReport {
		return socket.ScheduleReport{Namespace: "shop", Name: "web", Ours: true, NodeCount: 1,
			Summary: "0/1 nodes are available.", Filters: []socket.ScheduleFilter{{Name: filter, Applies: true}},
			Nodes: []socket.ScheduleNode{{Name: "a", Filters: map[string]string{filter: "no"}}}}
	}
	for _, m := range remedies {
		var out bytes.Buffer
		require.NoError(t, printSchedule(refused(m.filter), &out))
		require.Contains(t, out.String(), "\nNext:\n  "+m.filter+"\n    "+m.next+"\n")
		require.LessOrEqual(t, len("    "+m.next), 80)
	}
	for name, c := range map[string]struct {
		change func(*socket.ScheduleReport)
		want   string
	}{
		"gate": {func(r *socket.ScheduleReport) { r.Gates = []string{"example.com/wait"} }, "`coracle ctl edit pod web -n shop`"},
		"another scheduler": {func(r *socket.ScheduleReport) { r.Ours, r.SchedulerName = false, "volcano" },
			"Next: start scheduler volcano, or leave out schedulerName"},
		"no such node": {func(r *socket.ScheduleReport) { r.Node, r.NodeMissing = "b", true },
			"Next: there is no node b: `coracle ctl get nodes`"},
		"no nodes": {func(r *socket.ScheduleReport) { r.NodeCount, r.Nodes = 0, nil }, "Next: there is no node: `coracle status`"},
	} {
		r := refused("NodePorts")
		c.change(&r)
		var out bytes.Buffer
		require.NoError(t, printSchedule(r, &out))
		require.Contains(t, out.String(), c.want, name)
	}
	r := refused("NodePorts")
	r.Node = "a"
	var out bytes.Buffer
	require.NoError(t, printSchedule(r, &out))
	require.NotContains(t, out.String(), "Next:", "it has its node")
}

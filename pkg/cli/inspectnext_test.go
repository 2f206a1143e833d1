package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// A pod that cannot start gets a next step, whatever it waits for.
func TestInspectScheduleSaysWhatToDo(t *testing.T) {
	refused := func(filter string) socket.ScheduleReport {
		return socket.ScheduleReport{Namespace: "shop", Name: "web", Ours: true, NodeCount: 1,
			Summary: "0/1 nodes are available.", Filters: []socket.ScheduleFilter{{Name: filter, Applies: true}},
			Nodes: []socket.ScheduleNode{{Name: "a", Filters: map[string]string{filter: "no"}}}}
	}
	for _, m := range remedies {
		var out bytes.Buffer
		require.NoError(t, printScheduleAndNext(refused(m.filter), &out))
		require.Contains(t, out.String(), "\nNext:\n  "+m.filter+"\n    "+m.next+"\n")
		require.LessOrEqual(t, len("    "+m.next), 80)
	}
	for name, c := range map[string]struct {
		change func(*socket.ScheduleReport)
		want   string
	}{
		"gate": {func(r *socket.ScheduleReport) { r.Gates = []string{"example.com/wait"} },
			"`coracle ctl edit pod web -n shop`\n  NodePorts\n"},
		"another scheduler": {func(r *socket.ScheduleReport) { r.Ours, r.SchedulerName = false, "volcano" },
			"Next:\n  start scheduler volcano, or leave out schedulerName"},
		"no such node": {func(r *socket.ScheduleReport) { r.Node, r.NodeMissing = "b", true },
			"names node b, which does not exist"},
		"no nodes": {func(r *socket.ScheduleReport) { r.NodeCount, r.Nodes = 0, nil },
			"Next:\n  there is no node: `coracle status`"},
	} {
		r := refused("NodePorts")
		c.change(&r)
		var out bytes.Buffer
		require.NoError(t, printScheduleAndNext(r, &out))
		require.Contains(t, out.String(), c.want, name)
	}
	r := refused("NodePorts")
	r.Node = "a"
	var out bytes.Buffer
	require.NoError(t, printScheduleAndNext(r, &out))
	require.NotContains(t, out.String(), "Next:", "it has its node")
}

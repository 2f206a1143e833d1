package cli

import (
	"bytes"
	"strings"
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
	for name, c := range map[string]struct{ filter, verdict, want string }{
		"no claim": {"VolumeBinding", `persistentvolumeclaim "x" not found (its claims: x)`, "create the claim, or correct"},
		"no slot":  {"NodeResourcesFit", "Too many pods (pods: wants 1, 0 of 110 is free)", "a higher --max-pods"},
		"no device": {
			"NodeResourcesFit", "Insufficient nvidia.com/gpu (nvidia.com/gpu: wants 1, 0 of 0 is free)",
			"coracle help devices",
		},
	} {
		r := refused(c.filter)
		r.Nodes[0].Filters[c.filter] = c.verdict
		var out bytes.Buffer
		require.NoError(t, printScheduleAndNext(r, &out))
		require.Contains(t, out.String(), c.want, name)
	}

	// The taint of a cordoned node is not another reason, and a pod that waits for its node needs no change.
	r := refused("NodeUnschedulable")
	r.Filters = append(r.Filters, socket.ScheduleFilter{Name: "TaintToleration", Applies: true})
	r.Nodes[0].Filters["TaintToleration"] = "node(s) had untolerated taint(s) " + cordon
	var cordoned bytes.Buffer
	require.NoError(t, printScheduleAndNext(r, &cordoned))
	require.NotContains(t, cordoned.String(), "untolerated")
	require.NotContains(t, cordoned.String(), "add a toleration")
	r.Nodes[0].Filters["TaintToleration"] = "node(s) had untolerated taint(s) (team=blue:NoSchedule)"
	cordoned.Reset()
	require.NoError(t, printScheduleAndNext(r, &cordoned))
	require.Contains(t, cordoned.String(), "add a toleration")
	r.NominatedNode = "a"
	cordoned.Reset()
	require.NoError(t, printScheduleAndNext(r, &cordoned))
	require.Contains(t, cordoned.String(), "Next:\n  nothing: the pod starts when pods there have ended")
	require.NotContains(t, cordoned.String(), "add a toleration")

	// A pod on a node gets a next step only if it cannot start there.
	for name, c := range map[string]struct {
		change func(*socket.ScheduleReport)
		want   string
	}{
		"runs":            {func(*socket.ScheduleReport) {}, ""},
		"waits":           {func(r *socket.ScheduleReport) { r.Waiting = true }, "\nNext:\n  NodePorts\n"},
		"waits, and fits": {func(r *socket.ScheduleReport) { r.Waiting, r.Nodes[0].Name = true, "b" }, ""},
		"refused": {func(r *socket.ScheduleReport) { r.Refused = "Pod was rejected: no" },
			"remove the reason, or leave out nodeName,\n  and create the pod anew\n  NodePorts\n"},
	} {
		r := refused("NodePorts")
		r.Node = "a"
		c.change(&r)
		var out bytes.Buffer
		require.NoError(t, printScheduleAndNext(r, &out))
		if c.want == "" {
			require.NotContains(t, out.String(), "Next:", name)
		} else {
			require.Contains(t, out.String(), c.want, name)
		}
		require.Equal(t, r.Refused != "", strings.Contains(out.String(), "was refused by node a"), name)
	}
	r = refused("TaintToleration")
	r.Node, r.Waiting = "a", true
	r.Nodes[0].Filters["TaintToleration"] = "node(s) had untolerated taint(s) (node.kubernetes.io/unreachable:NoExecute)"
	var unreachable bytes.Buffer
	require.NoError(t, printScheduleAndNext(r, &unreachable))
	require.Contains(t, unreachable.String(), "the node is not ready or short of space: `coracle ctl describe node NODE`")
}

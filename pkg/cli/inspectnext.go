package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// remedies says for each filter what a user can do about a refusal, in the order of the filters. Lines fit on a
// terminal of 80 columns.
var remedies = []struct{ filter, next string }{
	{"NodeUnschedulable", "the node is cordoned: `coracle ctl uncordon NODE` ends that"},
	{"TaintToleration", "add a toleration, or remove it: `coracle ctl taint node NODE KEY-`"},
	{"NodeAffinity", "`coracle ctl label node NODE KEY=VALUE`, or change the selector"},
	{"NodePorts", "use a Service: `coracle help expose`; or end the pod with the port"},
	{"NodeResourcesFit", "lower the requests; `coracle nodes` shows who has room"},
	{"VolumeRestrictions", "end the pod that uses the claim, or mount it ReadWriteMany"},
	{"NodeVolumeLimits", "add a machine: `coracle help add-node`"},
	{"VolumeBinding", "`coracle ctl describe pvc NAME` ends with what the claim waits for"},
	{"VolumeZone", "the volume is in another zone: label or add a node there"},
	{"DynamicResources", "`coracle ctl get resourceclaims,resourceslices`"},
	{"NodeDeclaredFeatures", "upgrade the node: `coracle help upgrade`"},
	{"PodTopologySpread", "label the nodes, or `whenUnsatisfiable: ScheduleAnyway`"},
	{"InterPodAffinity", "compare labels: `coracle ctl get pods -A --show-labels`"},
}

// printNext says what to do about a pod that cannot start, and prints nothing for a pod that fits or has its node.
func printNext(r socket.ScheduleReport, out io.Writer) {
	switch {
	case len(r.Gates) > 0:
		fmt.Fprintln(out, "\nNext: the controller that owns the gate removes it, or you do: `coracle ctl edit pod "+
			r.Name+" -n "+r.Namespace+"`")
		return
	case r.NodeMissing:
		fmt.Fprintf(out, "\nNext: there is no node %s: `coracle ctl get nodes`; leave out nodeName, and create the pod anew\n", r.Node)
		return
	case !r.Ours && r.Node == "":
		fmt.Fprintf(out, "\nNext: start scheduler %s, or leave out schedulerName, and create the pod anew\n", r.SchedulerName)
		return
	case r.Node != "" || r.Fitting > 0:
		return
	case r.NodeCount == 0:
		fmt.Fprintln(out, "\nNext: there is no node: `coracle status`")
		return
	}
	heading := "\nNext:\n"
	for _, m := range remedies {
		if slices.ContainsFunc(r.Nodes, func(n socket.ScheduleNode) bool {
			verdict, ok := n.Filters[m.filter]
			return ok && verdict != socket.FilterPassed
		}) {
			fmt.Fprintf(out, "%s  %s\n    %s\n", heading, m.filter, m.next)
			heading = ""
		}
	}
}

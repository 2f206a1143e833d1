package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// remedies says for each filter what a user can do about a refusal, in the order of the filters. Lines fit on a
// terminal of 80 columns.
var remedies = []struct{ filter, next string }{
	{"NodeUnschedulable", "the node is cordoned: `coracle ctl uncordon NODE` ends that"},
	{"TaintToleration", "add a toleration, or end the taint: `coracle ctl taint node NODE KEY-`"},
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

func printScheduleAndNext(r socket.ScheduleReport, out io.Writer) error {
	if err := printSchedule(r, out); err != nil {
		return err
	}
	printNext(r, out)
	return nil
}

// printNext says what to do about a pod that cannot start, and prints nothing for a pod that fits or runs.
func printNext(r socket.ScheduleReport, out io.Writer) {
	var lines []string
	switch {
	case len(r.Gates) > 0:
		lines = []string{"the controller that set the gate removes it, or you do:",
			fmt.Sprintf("`coracle ctl edit pod %s -n %s`", r.Name, r.Namespace)}
	case r.Refused != "":
		lines = []string{"the pod stays Failed: remove the reason, or leave out nodeName,", "and create the pod anew"}
	case r.NodeMissing:
		lines = []string{"leave out nodeName, or name one of `coracle ctl get nodes`,", "and create the pod anew"}
	case !r.Ours && r.Node == "":
		lines = []string{"start scheduler " + r.SchedulerName + ", or leave out schedulerName", "and create the pod anew"}
	case r.Node == "" && r.NodeCount == 0:
		lines = []string{"there is no node: `coracle status`"}
	}
	if r.Node == "" && r.NominatedNode != "" {
		lines = append(lines, "nothing: the pod starts when pods there have ended, or its volume is made",
			"`coracle ctl get pods -A -o wide` shows them Terminating")
	} else if r.Node == "" && r.Fitting == 0 {
		lines = append(lines, remediesFor(r)...)
	} else if r.Refused != "" || r.Waiting {
		r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n socket.ScheduleNode) bool { return n.Name != r.Node })
		lines = append(lines, remediesFor(r)...)
	}
	if len(lines) > 0 {
		fmt.Fprintf(out, "\nNext:\n  %s\n", strings.Join(lines, "\n  "))
	}
}

func remediesFor(r socket.ScheduleReport) (lines []string) {
	for _, m := range remedies {
		i := slices.IndexFunc(r.Nodes, func(n socket.ScheduleNode) bool { return refuses(n, m.filter) })
		if i < 0 {
			continue
		}
		next := m.next
		switch verdict := r.Nodes[i].Filters[m.filter]; {
		case m.filter == "VolumeBinding" && strings.Contains(verdict, "not found"):
			next = "create the claim, or correct claimName and create the pod anew"
		case m.filter == "TaintToleration" && strings.Contains(verdict, "(node.kubernetes.io/"):
			next = "the node is not ready or short of space: `coracle ctl describe node NODE`"
		case m.filter == "NodeResourcesFit" && strings.HasPrefix(verdict, "Too many pods"):
			next = "end pods there, or start the node with a higher --max-pods"
		case m.filter == "NodeResourcesFit" && strings.Contains(verdict, "/") &&
			strings.Contains(verdict, "0 of 0 is free"):
			next = "no device plugin on that node offers it: `coracle help devices`"
		}
		lines = append(lines, m.filter, "  "+next)
	}
	return lines
}

// cordon is the taint of a cordoned node, which NodeUnschedulable refuses already.
const cordon = "(node.kubernetes.io/unschedulable:NoSchedule)"

// refuses reports whether a filter refuses a node for a reason of its own.
func refuses(n socket.ScheduleNode, filter string) bool {
	verdict, applies := n.Filters[filter]
	if !applies || verdict == socket.FilterPassed {
		return false
	}
	return filter != "TaintToleration" || !strings.HasSuffix(verdict, cordon) ||
		!refuses(n, "NodeUnschedulable")
}

package cli

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func inspectScheduleCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule POD [NODE...]",
		Short: "Why a pod is, or would be, on a node: each filter's verdict and each score on every node",
		Long: `Applies the scheduler's filters and scores to a pod, on each node or on those named. A pod that is on a node already is
explained as if it were scheduled now. A large cluster's scheduler scores a sample of the nodes, unlike this command.`,
		Example: `  coracle ctl inspect schedule web-0 -n shop
  coracle ctl inspect schedule web-0 node-7 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("usage: coracle ctl inspect schedule POD [NODE...]")
			}
			return nil
		},
	}
	output := cmd.Flags().StringP("output", "o", "", "json, for programs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(*output); err != nil {
			return err
		}
		namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(args[0], "pods/"), "pod/")
		raw, err := inspect(cmd.Context(), flags, "schedule", url.Values{
			"namespace": {namespace}, "pod": {name}, "node": args[1:],
		})
		if err != nil {
			return err
		}
		if *output == "json" {
			_, err = streams.Out.Write(raw)
			return err
		}
		return printed(printScheduleAndNext)(raw, streams.Out)
	}
	return cmd
}

func printSchedule(r socket.ScheduleReport, out io.Writer) error {
	where := "is not on a node yet"
	switch {
	case r.Node != "":
		where = "is on node " + r.Node + "; if it were scheduled now"
		if r.NodeMissing {
			where = "names node " + r.Node + ", which does not exist; if it were scheduled now"
		} else if r.Refused != "" {
			where = "was refused by node " + r.Node + "; if it were scheduled now"
		}
	case len(r.Gates) > 0:
		where = "waits for its scheduling gates " + strings.Join(r.Gates, ", ")
	case r.NominatedNode != "":
		where = "has chosen node " + r.NominatedNode + ", and waits there for pods to end or volumes to be made"
	}
	head := fmt.Sprintf("Pod %s/%s %s", r.Namespace, r.Name, where)
	if !r.Ours {
		command.Paragraph(out, head)
		head = fmt.Sprintf("Its scheduler is %q, not Coracle's; by Coracle's default profile", r.SchedulerName)
	}
	if r.Summary == "" {
		r.Summary = fmt.Sprintf("%d/%d nodes fit.", r.Fitting, r.NodeCount)
	}
	command.Paragraph(out, head+": "+r.Summary)
	if r.Group != "" {
		fmt.Fprintf(out, "Its group: %s.\n", r.Group)
	}
	var applied, others []string
	for _, f := range r.Filters {
		if f.Applies {
			applied = append(applied, f.Name)
		} else {
			others = append(others, f.Name)
		}
	}
	for _, list := range []struct {
		text  string
		names []string
	}{{"Filters that apply to it", applied}, {"Filters that do not apply to it", others}} {
		if len(list.names) > 0 {
			command.Paragraph(out, fmt.Sprintf("%s: %s.", list.text, strings.Join(list.names, ", ")))
		}
	}
	if len(r.Nodes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	err := command.Table(out, "NODE\tFITS\tREFUSED BY\tREASONS", func(line func(...any)) {
		for _, n := range r.Nodes {
			line(verdicts(n, applied)...)
		}
	})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(r.Nodes, func(n socket.ScheduleNode) bool { return n.Fits }) {
		fmt.Fprintln(out)
		err = printScores(r, out)
	}
	if more := r.NodeCount - len(r.Nodes); more > 0 && len(r.Nodes) == socket.MostScheduleNodes {
		fmt.Fprintf(out, "\nNot listed: %s. Name the nodes that you want to see.\n", count.Of(more, "more node"))
	}
	return err
}

func verdicts(n socket.ScheduleNode, filters []string) []any {
	fits := "no"
	if n.Fits {
		fits = "yes"
	}
	var by, reasons []string
	for _, name := range filters {
		if refuses(n, name) {
			by, reasons = append(by, name), append(reasons, n.Filters[name])
		}
	}
	return []any{n.Name, fits, strings.Join(by, ", "), strings.Join(reasons, "; ")}
}

func printScores(r socket.ScheduleReport, out io.Writer) error {
	header := "NODE\tTOTAL\tSCORES"
	if r.Ordered {
		header = "NODE\tSCORES"
	}
	err := command.Table(out, header, func(line func(...any)) {
		for _, n := range r.Nodes {
			if !n.Fits {
				continue
			}
			scores := make([]string, len(r.Scores))
			for i, s := range r.Scores {
				scores[i] = fmt.Sprintf("%s=%d", s.Name, n.Scores[s.Name])
				if s.Weight > 1 {
					scores[i] = fmt.Sprintf("%s(x%d)=%d", s.Name, s.Weight, n.Scores[s.Name])
				}
			}
			cells := []any{n.Name}
			if !r.Ordered {
				cells = append(cells, n.Total)
			}
			line(append(cells, strings.Join(scores, ", "))...)
		}
	})
	if r.Ordered {
		fmt.Fprintln(out, "\nScores are compared one after the other: each breaks the ties of those before it.")
	}
	return err
}

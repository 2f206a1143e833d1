package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/testing/fakenode"
)

func nodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "node", Short: "Register fake nodes, for measuring and testing", Args: command.Exactly(0, "fake"),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(fakeCommand())
	return cmd
}

func fakeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fake --count N",
		Short: "Register nodes that run nothing, for measuring and testing",
		Long: `Registers nodes that run nothing, and plays their part until it is interrupted: it sends heartbeats
and reports that their pods are Running. Then it deletes them and the pods on them. It works with
any cluster.

A pod with restartPolicy Never or OnFailure succeeds at once, or as its annotations say:
  ` + fakenode.DurationAnnotation + `: 5s       how long it runs
  ` + fakenode.ExitCodeAnnotation + `: "3"     how its containers exit

The nodes have the label ` + fakenode.Label + `. In a cluster with real pods, give them a taint.`,
		Example: `  coracle node fake --count 1000
  coracle node fake --count 50 --prefix gpu- --cpu 96 --labels pool=gpu --taints fake=true:NoSchedule`,
		Args: command.Exactly(0, "--count N"),
	}
	cluster := command.Connector{}.Flags(cmd)
	f := cmd.Flags()
	count := f.Int("count", 1, fmt.Sprintf("number of nodes, at most %d", fakenode.MostNodes))
	cpu := f.String("cpu", "32", "CPUs of each node")
	memory := f.String("memory", "256Gi", "memory of each node")
	pods := f.Int64("pods", 110, "maximum number of pods on each node")
	prefix := f.String("prefix", "fake-", "prefix of the names of the nodes, which are followed by a number")
	labels := f.StringToString("labels", nil, "labels of the nodes, key=value")
	taints := f.StringSlice("taints", nil, "taints of the nodes, key=value:Effect")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o := fakenode.Config{Count: *count, Prefix: *prefix, Pods: *pods, Labels: *labels,
			Progress: func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }}
		var err error
		if o.CPU, err = resource.ParseQuantity(*cpu); err != nil {
			return fmt.Errorf("cpu %q: %w", *cpu, err)
		}
		if o.Memory, err = resource.ParseQuantity(*memory); err != nil {
			return fmt.Errorf("memory %q: %w", *memory, err)
		}
		if o.Taints, err = parseTaints(*taints); err != nil {
			return err
		}
		c, err := cluster()
		if err != nil {
			return err
		}
		o.REST = c.REST
		nodes, err := fakenode.New(o)
		if err != nil {
			return err
		}
		return nodes.Run(cmd.Context())
	}
	return cmd
}

func parseTaints(list []string) (taints []corev1.Taint, err error) {
	for _, text := range list {
		name, effect, ok := strings.Cut(text, ":")
		if !ok {
			return nil, fmt.Errorf("taint %q is not of the form key=value:Effect", text)
		}
		key, value, _ := strings.Cut(name, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints, nil
}

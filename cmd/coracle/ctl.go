package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const ctlName = "ctl"

// kubectlVerbs are the kubectl commands that `coracle` accepts without ctl. None is a command of coracle.
var kubectlVerbs = []string{
	"annotate", "api-resources", "api-versions", "apply", "attach", "auth", "autoscale", "certificate", "cluster-info",
	"cordon", "cp", "create", "debug", "describe", "diff", "drain", "edit", "events", "exec", "explain", "expose", "get",
	"inspect", "kustomize", "label", "patch", "port-forward", "proxy", "replace", "rollout", "scale", "set", "taint",
	"top", "uncordon", "wait",
}

// kubectlToo are commands of coracle that share a name with a command of kubectl, which users may mean.
var kubectlToo = []string{"coracle delete", "coracle logs", "coracle run"}

// withCtl inserts ctl before a kubectl command: if the program is called as kubectl, before one of kubectlVerbs,
// and before one of these whose arguments a shell completes.
func withCtl(args []string) []string {
	switch {
	case len(args) > 2 && args[1] == "create" && args[2] == "cluster": // as with kind; run says what to do
		return args
	case filepath.Base(args[0]) == "kubectl" || len(args) > 1 && slices.Contains(kubectlVerbs, args[1]):
		return slices.Insert(slices.Clone(args), 1, ctlName)
	case len(args) > 3 && strings.HasPrefix(args[1], cobra.ShellCompRequestCmd) && slices.Contains(kubectlVerbs, args[2]):
		return slices.Insert(slices.Clone(args), 2, ctlName)
	}
	return args
}

func ctlCommand() *cobra.Command {
	return &cobra.Command{
		Use:        ctlName,
		Short:      "Run kubectl against the cluster of this machine",
		SuggestFor: []string{"kubectl"},
		// kubectl parses its own flags.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			command.UseCluster(command.DataDir())
			cli.Kubectl(args)
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			command.UseCluster(command.DataDir())
			return cli.CompleteKubectl(cmd.Context(), append(args, toComplete))
		},
	}
}

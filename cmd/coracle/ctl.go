package main

import (
	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const ctlName = "ctl"

func ctlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   ctlName,
		Short: "Run kubectl against the cluster of this machine",
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

package main

import (
	"os"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli"
)

const ctlName = "ctl"

func ctlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   ctlName,
		Short: "Run kubectl against the cluster of this machine",
		// kubectl parses its own flags.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			cli.UseCluster(dataDir())
			cli.Kubectl(args)
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			cli.UseCluster(dataDir())
			return cli.CompleteKubectl(cmd.Context(), append(args, toComplete))
		},
	}
}

// dataDir returns the data directory for commands that read no other option.
func dataDir() string {
	if dir := os.Getenv("CORACLE_DATA_DIR"); dir != "" {
		return dir
	}
	return config.Default().DataDir
}

package main

import "github.com/spf13/cobra"

func buildbarnCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buildbarn",
		Short: "Look at farms that execute build actions remotely, and try them out",
	}
	cmd.AddCommand(buildbarnSmoke())
	return cmd
}

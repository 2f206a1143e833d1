package main

import "github.com/spf13/cobra"

func buildbarnCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buildbarn",
		Short: "Look at farms that execute build actions remotely, and try them out",
		Example: `  coracle ctl apply -f farm.yaml
  coracle buildbarn status
  coracle buildbarn smoke`,
	}
	cmd.AddCommand(buildbarnStatus(), buildbarnSmoke())
	return cmd
}

func buildbarnStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Draw farms: states, queues, workers busy and idle, how full storage is, hit rate", Args: exactly(0, "[-A]"),
		Long: `Draws the farms of a namespace, or of all, and the parts that belong to no farm. What programs say of themselves is read from their metrics, on port 9980 of
their pods, through the API server; nothing is said of those whose configuration does not serve them there.`,
	}
	cluster := connect(cmd)
	all := cmd.Flags().BoolP("all-namespaces", "A", false, "in all namespaces")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.BuildbarnStatus(cmd.Context(), cmd.OutOrStdout(), *all)
	}
	return cmd
}

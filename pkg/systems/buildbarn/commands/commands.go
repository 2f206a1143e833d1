// Package commands is the command line of Buildbarn farms. Its invariant: it changes nothing in the cluster.
package commands

import (
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/systems/command"
)

type commands struct{ command.Connector }

// New returns the command `coracle buildbarn`. kinds are the API resources of the system.
func New(kinds []metav1.APIResource) []*cobra.Command {
	return []*cobra.Command{commands{command.Connector{Kinds: kinds}}.buildbarn()}
}

type cluster struct{ *command.Cluster }

func (k commands) buildbarn() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buildbarn",
		Short: "Look at build farms for Bazel, and try them out",
		Example: `  coracle ctl apply -f farm.yaml
  coracle buildbarn status
  coracle buildbarn smoke`,
	}
	cmd.AddCommand(k.status(), k.smoke())
	return cmd
}

func (k commands) status() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Draw farms: states, queues, workers, storage, hit rate",
		Args: command.Exactly(0, "[-A]"),
		Long: `Draws the farms of a namespace, or of all, and the parts that belong to no farm. Queues, storage and
hit rates are read from the metrics of the programs, on port 9980 of their pods, through the API
server. They are missing for programs whose configuration does not serve them there.`,
	}
	connect := k.Flags(cmd)
	all := cmd.Flags().BoolP("all-namespaces", "A", false, "in all namespaces")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connect()
		if err != nil {
			return err
		}
		return cluster{c}.BuildbarnStatus(cmd.Context(), cmd.OutOrStdout(), *all)
	}
	return cmd
}

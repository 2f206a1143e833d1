package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/ctl"
)

// connect adds the flags that select the cluster, and returns a function that connects to it.
func connect(cmd *cobra.Command) func() (*ctl.Cluster, error) {
	kubeconfig := cmd.Flags().String("kubeconfig", "", "kubeconfig of the cluster (default this machine's)")
	namespace := cmd.Flags().StringP("namespace", "n", "", "namespace (default that of the kubeconfig)")
	return func() (*ctl.Cluster, error) {
		ctl.UseCluster(dataDir())
		return ctl.Connect(*kubeconfig, *namespace)
	}
}

func runCommand() *cobra.Command {
	var o ctl.RunOptions
	cmd := &cobra.Command{
		Use:   "run NAME --image IMAGE [--wait] [-- COMMAND...]",
		Short: "Run a container once, as a task",
		Args: func(cmd *cobra.Command, args []string) error {
			named := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				named = dash
			}
			if named != 1 || o.Image == "" {
				return errors.New("usage: coracle run NAME --image IMAGE [--wait] [-- COMMAND...]")
			}
			return nil
		},
	}
	cluster := connect(cmd)
	cmd.Flags().StringVar(&o.Image, "image", "", "container image")
	cmd.Flags().StringArrayVarP(&o.Env, "env", "e", nil, "environment, NAME=value; may be repeated")
	cmd.Flags().BoolVar(&o.Wait, "wait", false, "wait until the task has finished, and exit with its exit code")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Name, o.Command = args[0], args[1:]
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Run(cmd.Context(), o, os.Stdout, os.Stderr)
	}
	return cmd
}

func psCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ps", Short: "List tasks", Args: exactly(0, "[--task NAME]")}
	cluster := connect(cmd)
	task := cmd.Flags().String("task", "", "show one task in detail")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Tasks(cmd.Context(), *task, os.Stdout)
	}
	return cmd
}

func nodesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "nodes", Short: "List nodes with their capacity and usage", Args: exactly(0, "")}
	cluster := connect(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Nodes(cmd.Context(), os.Stdout)
	}
	return cmd
}

func logsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "logs TASK", Short: "Print the logs of a task", Args: exactly(1, "TASK [-f]")}
	cluster := connect(cmd)
	follow := cmd.Flags().BoolP("follow", "f", false, "follow the logs until the task finishes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Logs(cmd.Context(), args[0], *follow, os.Stdout)
	}
	return cmd
}

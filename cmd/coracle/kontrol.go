package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/cli"
)

func kontrolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kontrol",
		Short: "Keep the objects of many clusters as they should be",
		Long: `Resources say which objects clusters should have. They are applied to the
clusters, and what others change there is reported or corrected.`,
		Example: `  coracle kontrol clusters add this --local
  coracle kontrol get
  coracle kontrol drift
  coracle kontrol diff settings
  coracle kontrol rollback settings --to 1`,
	}
	cmd.AddCommand(kontrolGet(), kontrolDescribe(), kontrolDiff(), kontrolHistory(), kontrolRollback(), kontrolWait(), kontrolDrift(), kontrolAdopt(), kontrolPush(), kontrolApprove(), kontrolClusters())
	return cmd
}

// selecting adds the flags that select Resources; namespace is that of their objects.
func selecting(cmd *cobra.Command, o *cli.KontrolOptions) func() (*cli.Cluster, error) {
	f := cmd.Flags()
	kubeconfig := f.String("kubeconfig", "", "kubeconfig of the cluster that has the resources (default this machine's)")
	f.StringVar(&o.Cluster, "cluster", "", "only those of a cluster")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "only those whose object is in a namespace")
	f.StringVar(&o.Kind, "kind", "", "only those whose object is of a kind, such as ConfigMap")
	return func() (*cli.Cluster, error) {
		cli.UseCluster(dataDir())
		return cli.Connect(*kubeconfig, "")
	}
}

// hub adds the flag that selects the cluster that has the resources.
func hub(cmd *cobra.Command) func() (*cli.Cluster, error) {
	kubeconfig := cmd.Flags().String("kubeconfig", "", "kubeconfig of the cluster that has the resources (default this machine's)")
	return func() (*cli.Cluster, error) {
		cli.UseCluster(dataDir())
		return cli.Connect(*kubeconfig, "")
	}
}

func outputFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "", "json or yaml instead of a table")
}

// question is RunE of a command whose exit code is its answer: errors are 2, so that they are no answer.
func question(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if exit := (*cli.Exit)(nil); err != nil && !errors.As(err, &exit) {
			return &cli.Exit{Code: 2, Err: err}
		}
		return err
	}
}

func kontrolGet() *cobra.Command {
	var o cli.KontrolOptions
	cmd := &cobra.Command{Use: "get [NAME...|bundle/NAME...]", Short: "List bundles and resources, and whether their clusters are as they say"}
	cluster := selecting(cmd, &o)
	cmd.Flags().StringVar(&o.State, "state", "", "only those in a state, such as Synced or Drifted")
	watch := cmd.Flags().BoolP("watch", "w", false, "print a line for each change")
	outputFlag(cmd, &o.Output)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Names = args
		c, err := cluster()
		switch {
		case err != nil:
			return err
		case *watch:
			return c.WatchResources(cmd.Context(), o, terminal())
		}
		return c.Get(cmd.Context(), o, terminal())
	}
	return cmd
}

func kontrolDescribe() *cobra.Command {
	cmd := &cobra.Command{Use: "describe NAME|bundle/NAME", Short: "Show a resource or a bundle on each of its clusters: what was applied, what is there, and who changed it", Args: exactly(1, "NAME|bundle/NAME")}
	cluster := hub(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Describe(cmd.Context(), args[0], os.Stdout)
	}
	return cmd
}

func kontrolDiff() *cobra.Command {
	var o cli.DiffOptions
	cmd := &cobra.Command{
		Use:   "diff NAME",
		Short: "Show what applying a resource would change on its clusters",
		Long: `Show what applying a resource would change on its clusters: each is asked by a dry
run. If one cannot be reached, what was seen there last is compared.

The exit code is 0 if nothing would change, 1 if something would, and 2 after an error.`,
		Args: exactly(1, "NAME [--cluster CLUSTER | --revision N]"),
	}
	cluster := hub(cmd)
	cmd.Flags().StringVar(&o.Cluster, "cluster", "", "only on this cluster (default all that should have it)")
	cmd.Flags().Int64Var(&o.Revision, "revision", 0, "show what has changed since this revision instead")
	cmd.RunE = question(func(cmd *cobra.Command, args []string) error {
		o.Name = args[0]
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Diff(cmd.Context(), o, terminal())
	})
	return cmd
}

func kontrolHistory() *cobra.Command {
	var format string
	cmd := &cobra.Command{Use: "history NAME", Short: "List the last revisions of a resource and what they changed", Args: exactly(1, "NAME [-o json|yaml]")}
	cluster := hub(cmd)
	outputFlag(cmd, &format)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.History(cmd.Context(), args[0], format, os.Stdout)
	}
	return cmd
}

func kontrolRollback() *cobra.Command {
	var o cli.RollbackOptions
	cmd := &cobra.Command{Use: "rollback NAME --to REVISION", Short: "Give a resource the content of a former revision", Args: exactly(1, "NAME --to REVISION [--dry-run]")}
	cluster := hub(cmd)
	cmd.Flags().Int64Var(&o.Revision, "to", 0, "the revision; the latest, if several had its number")
	cmd.Flags().Int64Var(&o.Generation, "to-generation", 0, "the generation, if several revisions have the same number")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only show what would change")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Name = args[0]
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Rollback(cmd.Context(), o, terminal())
	}
	return cmd
}

func kontrolWait() *cobra.Command {
	var o cli.KontrolOptions
	cmd := &cobra.Command{
		Use:   "wait [NAME...|bundle/NAME...]",
		Short: "Wait until resources or bundles are in sync",
		Long: `Wait until resources, by default all, are in sync or in another state, or bundles in a phase.

The exit code is 0 if they are, 1 if they are not within the timeout, and 2 after an
error, such as a resource that is deleted.`,
	}
	cluster := selecting(cmd, &o)
	state := cmd.Flags().String("for", "Synced", "the state, or Deleted")
	timeout := cmd.Flags().Duration("timeout", time.Minute, "how long to wait")
	cmd.RunE = question(func(cmd *cobra.Command, args []string) error {
		o.Names = args
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Wait(cmd.Context(), o, *state, *timeout, terminal())
	})
	return cmd
}

func kontrolDrift() *cobra.Command {
	var o cli.KontrolOptions
	cmd := &cobra.Command{
		Use:   "drift [NAME...]",
		Short: "List the fields that somebody else changed on the clusters",
		Long: `List the fields that somebody else changed on the clusters, with who and when.

The exit code is 0 if there are none, 1 if there are some, and 2 after an error.`,
	}
	cluster := selecting(cmd, &o)
	outputFlag(cmd, &o.Output)
	cmd.RunE = question(func(cmd *cobra.Command, args []string) error {
		o.Names = args
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Drift(cmd.Context(), o, terminal())
	})
	return cmd
}

func kontrolAdopt() *cobra.Command {
	var o cli.AdoptOptions
	cmd := &cobra.Command{
		Use:   "adopt KIND/NAME --cluster CLUSTER",
		Short: "Make a resource of an object that a cluster has",
		Long: `Make a resource of an object that a cluster has, with what people wrote of it. Without
--yes it is only shown. The object stays if the resource is deleted, and its drift is
reported, unless --mode says otherwise.`,
		Example: `  coracle kontrol adopt configmap/settings --cluster this
  coracle kontrol adopt deployment.apps/web -n shop --cluster edge --mode correct --yes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || o.Cluster == "" {
				return errors.New("usage: coracle kontrol adopt KIND/NAME --cluster CLUSTER [-n NAMESPACE] [--name NAME] [--mode MODE] [--yes]")
			}
			return nil
		},
	}
	cluster := connect(cmd)
	f := cmd.Flags()
	f.StringVar(&o.Cluster, "cluster", "", "the cluster that has the object")
	f.StringVar(&o.Name, "name", "", "name of the resource (default made of the object's)")
	f.StringVar(&o.Mode, "mode", "", "report, correct or enforce (default report)")
	f.BoolVar(&o.Yes, "yes", false, "make the resource")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Object = args[0]
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Adopt(cmd.Context(), o, terminal())
	}
	return cmd
}

func kontrolClusters() *cobra.Command {
	var format string
	cmd := &cobra.Command{Use: "clusters", Short: "List, add and remove clusters", Args: exactly(0, "[-o json|yaml]")}
	cluster := hub(cmd)
	outputFlag(cmd, &format)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Clusters(cmd.Context(), format, terminal())
	}
	cmd.AddCommand(kontrolClusterAdd(), kontrolClusterRemove())
	return cmd
}

func kontrolClusterAdd() *cobra.Command {
	var o cli.ClusterOptions
	cmd := &cobra.Command{
		Use:   "add NAME --kubeconfig FILE | --pull --token-file FILE | --local",
		Short: "Add a cluster that resources can be applied to",
		Example: `  coracle kontrol clusters add this --local
  coracle kontrol clusters add edge --kubeconfig edge.kubeconfig --label env=prod
  coracle kontrol clusters add boat --pull --token-file boat.token`,
		Args: exactly(1, "NAME --kubeconfig FILE | --pull --token-file FILE | --local [--context NAME] [--label KEY=VALUE]"),
	}
	f := cmd.Flags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to add; it is copied into a Secret")
	f.StringVar(&o.Context, "context", "", "context in the kubeconfig (default its current one)")
	f.BoolVar(&o.Pull, "pull", false, "add a cluster that cannot be reached: the command coracle agent kontrol connects it to this one")
	f.StringVar(&o.TokenFile, "token-file", "", "with --pull: the file to which the agent's token is written")
	f.BoolVar(&o.Local, "local", false, "add the cluster that has the resources itself")
	f.StringVar(&o.SecretNamespace, "secret-namespace", metav1.NamespaceSystem, "namespace of that Secret: one that is read, if the hub is an operator with --source-namespaces")
	f.StringArrayVarP(&o.Labels, "label", "l", nil, "label of the cluster, KEY=VALUE; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Name = args[0]
		cli.UseCluster(dataDir())
		c, err := cli.Connect("", "") // --kubeconfig is that of the other cluster
		if err != nil {
			return err
		}
		return c.AddCluster(cmd.Context(), o, os.Stdout)
	}
	return cmd
}

func kontrolClusterRemove() *cobra.Command {
	cmd := &cobra.Command{Use: "remove NAME", Short: "Remove a cluster that no resource is for", Args: exactly(1, "NAME")}
	cluster := hub(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.RemoveCluster(cmd.Context(), args[0], os.Stdout)
	}
	return cmd
}

// exitWith ends the process as a command's question was answered.
func exitWith(exit *cli.Exit) {
	if exit.Err != nil {
		fmt.Fprintln(os.Stderr, "Error:", exit.Err)
	}
	os.Exit(exit.Code)
}

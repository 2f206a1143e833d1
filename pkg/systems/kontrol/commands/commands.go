// Package commands implements the command line of Kontrol.
//
// Its invariant: the values of Secrets are never printed, only their hashes.
package commands

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

type commands struct{ command.Connector }

// New returns `coracle kontrol`. kinds are Kontrol's API resources.
func New(kinds []metav1.APIResource) []*cobra.Command {
	return []*cobra.Command{commands{command.Connector{Kinds: kinds}}.kontrol()}
}

// The singular names of Kontrol's kinds.
const (
	resourceKind = "resource"
	bundleKind   = "bundle"
	clusterKind  = "cluster"
)

func resourceList() ctrl.ObjectList { return &kontrol.ResourceList{} }

func clusterList() ctrl.ObjectList { return &kontrol.ClusterList{} }

// cluster is the hub: the cluster that stores the Resources.
type cluster struct {
	*command.Cluster
	// target connects to a registered cluster; nil means by REST.
	target func(*rest.Config) (ctrl.Client, error)
}

func (k commands) connect(kubeconfig string) (*cluster, error) {
	c, err := k.Connect(kubeconfig, "")
	if err != nil {
		return nil, err
	}
	return &cluster{Cluster: c}, nil
}

func (k commands) kontrol() *cobra.Command {
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
	cmd.AddCommand(k.get(), k.describe(), k.diff(), k.history(), k.rollback(), k.wait(), k.drift(), k.adopt(), k.push(),
		k.approve(), k.clusters())
	return cmd
}

// onHub makes a command connect to the hub and call f. If kinds are given, the arguments are names of such objects.
func (k commands) onHub(cmd *cobra.Command,
	f func(ctx context.Context, c *cluster, args []string, t command.Terminal) error, kinds ...string) {
	kubeconfig := cmd.Flags().String("kubeconfig", "",
		"kubeconfig of the cluster that has the resources (default this machine's)")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(kinds) > 0 {
			if args, err = k.Names(args, kinds...); err != nil {
				return err
			}
		}
		c, err := k.connect(*kubeconfig)
		if err != nil {
			return err
		}
		return f(cmd.Context(), c, args, command.Standard())
	}
}

// selecting adds the flags that select Resources. --namespace is the namespace of their objects.
func selecting(cmd *cobra.Command, o *KontrolOptions) {
	f := cmd.Flags()
	f.StringVar(&o.Cluster, "cluster", "", "only resources for this cluster")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "only resources whose object is in this namespace")
	f.StringVar(&o.Kind, "kind", "", "only resources whose object is of this kind, such as ConfigMap")
}

func outputFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "", "json or yaml instead of a table")
}

// question marks a command whose exit code 0 or 1 is its answer: errors exit with 2.
func question(cmd *cobra.Command) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if exit := (*command.Exit)(nil); err != nil && !errors.As(err, &exit) {
			return &command.Exit{Code: 2, Err: err}
		}
		return err
	}
}

func (k commands) get() *cobra.Command {
	var o KontrolOptions
	cmd := &cobra.Command{
		Use: "get [NAME...|bundle/NAME...]", Short: "List bundles and resources, and whether they are in sync",
	}
	selecting(cmd, &o)
	cmd.Flags().StringVar(&o.State, "state", "", "only those in a state, such as Synced or Drifted")
	watch := cmd.Flags().BoolP("watch", "w", false, "print a line for each change")
	outputFlag(cmd, &o.Output)
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		o.Names = args
		if *watch {
			return c.WatchResources(ctx, o, t)
		}
		return c.Get(ctx, o, t)
	}, resourceKind, bundleKind)
	k.Complete(cmd, 0, resourceList)
	return cmd
}

func (k commands) describe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe NAME|bundle/NAME",
		Short: "Show a resource or a bundle on each of its clusters, and its drift",
		Args:  command.Exactly(1, "NAME|bundle/NAME"),
	}
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		return c.Describe(ctx, args[0], t.Out)
	}, resourceKind, bundleKind)
	k.Complete(cmd, 1, resourceList)
	return cmd
}

func (k commands) diff() *cobra.Command {
	var o DiffOptions
	cmd := &cobra.Command{
		Use:   "diff NAME",
		Short: "Show what applying a resource would change on its clusters",
		Long: `Show what applying a resource would change on its clusters: each is asked by a dry
run. If one cannot be reached, what was seen there last is compared.

The exit code is 0 if nothing would change, 1 if something would, and 2 after an error.`,
		Args: command.Exactly(1, "NAME [--cluster CLUSTER | --revision N]"),
	}
	cmd.Flags().StringVar(&o.Cluster, "cluster", "", "only on this cluster (default all that should have it)")
	cmd.Flags().Int64Var(&o.Revision, "revision", 0, "show what has changed since this revision instead")
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		o.Name = args[0]
		return c.Diff(ctx, o, t)
	}, resourceKind)
	question(cmd)
	k.Complete(cmd, 1, resourceList)
	return cmd
}

func (k commands) history() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "List the last revisions of a resource and what they changed",
		Args:  command.Exactly(1, "NAME [-o json|yaml]"),
	}
	outputFlag(cmd, &format)
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		return c.History(ctx, args[0], format, t.Out)
	}, resourceKind)
	k.Complete(cmd, 1, resourceList)
	return cmd
}

func (k commands) rollback() *cobra.Command {
	var o RollbackOptions
	cmd := &cobra.Command{
		Use:   "rollback NAME --to REVISION",
		Short: "Give a resource the content of a former revision",
		Args:  command.Exactly(1, "NAME --to REVISION [--dry-run]"),
	}
	cmd.Flags().Int64Var(&o.Revision, "to", 0, "the revision; the latest, if several had its number")
	cmd.Flags().Int64Var(&o.Generation, "to-generation", 0, "the generation, if several revisions have the same number")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only show what would change")
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		o.Name = args[0]
		return c.Rollback(ctx, o, t)
	}, resourceKind)
	k.Complete(cmd, 1, resourceList)
	return cmd
}

func (k commands) wait() *cobra.Command {
	var o KontrolOptions
	cmd := &cobra.Command{
		Use:   "wait [NAME...|bundle/NAME...]",
		Short: "Wait until resources or bundles are in sync",
		Long: `Wait until resources, by default all, are in sync or in another state, or bundles in a phase.

The exit code is 0 if they are, 1 if they are not within the timeout, and 2 after an
error, such as a resource that is deleted.`,
	}
	selecting(cmd, &o)
	state := cmd.Flags().String("for", "Synced", "the state, or Deleted")
	timeout := cmd.Flags().Duration("timeout", time.Minute, "how long to wait")
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		o.Names = args
		return c.Wait(ctx, o, *state, *timeout, t)
	}, resourceKind, bundleKind)
	question(cmd)
	k.Complete(cmd, 0, resourceList)
	return cmd
}

func (k commands) drift() *cobra.Command {
	var o KontrolOptions
	cmd := &cobra.Command{
		Use:   "drift [NAME...]",
		Short: "List the fields that others changed on the clusters",
		Long: `List the fields that others changed on the clusters, with who and when.

The exit code is 0 if there are none, 1 if there are some, and 2 after an error.`,
	}
	selecting(cmd, &o)
	outputFlag(cmd, &o.Output)
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		o.Names = args
		return c.Drift(ctx, o, t)
	}, resourceKind)
	question(cmd)
	k.Complete(cmd, 0, resourceList)
	return cmd
}

func (k commands) adopt() *cobra.Command {
	var o AdoptOptions
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
				return errors.New("name one object, and its cluster with --cluster; usage: coracle kontrol adopt KIND/NAME " +
					"--cluster CLUSTER [-n NAMESPACE] [--name NAME] [--mode MODE] [--yes]")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Cluster, "cluster", "", "the cluster that has the object")
	f.StringVar(&o.Name, "name", "", "name of the resource (default made of the object's)")
	f.StringVar(&o.Mode, "mode", "", "report, correct or enforce (default report)")
	f.BoolVar(&o.Yes, "yes", false, "make the resource")
	k.OnCluster(cmd, func(ctx context.Context, c *command.Cluster, args []string) error {
		o.Object = args[0]
		return (&cluster{Cluster: c}).Adopt(ctx, o, command.Standard())
	})
	return cmd
}

func (k commands) clusters() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "List, add and remove clusters",
		Args:  command.Exactly(0, "[-o json|yaml]"),
	}
	outputFlag(cmd, &format)
	k.onHub(cmd, func(ctx context.Context, c *cluster, _ []string, t command.Terminal) error {
		return c.Clusters(ctx, format, t)
	})
	cmd.AddCommand(k.clusterAdd(), k.clusterRemove())
	return cmd
}

func (k commands) clusterAdd() *cobra.Command {
	var o ClusterOptions
	cmd := &cobra.Command{
		Use:   "add NAME --kubeconfig FILE | --pull --token-file FILE | --local",
		Short: "Add a cluster that resources can be applied to",
		Example: `  coracle kontrol clusters add this --local
  coracle kontrol clusters add edge --kubeconfig edge.kubeconfig --label env=prod
  coracle kontrol clusters add boat --pull --token-file boat.token`,
		Args: command.Exactly(1,
			"NAME --kubeconfig FILE | --pull --token-file FILE | --local [--context NAME] [--label KEY=VALUE]"),
	}
	f := cmd.Flags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to add; it is copied into a Secret")
	f.StringVar(&o.Context, "context", "", "context in the kubeconfig (default its current one)")
	f.BoolVar(&o.Pull, "pull", false,
		"add a cluster that cannot be reached: the command coracle agent kontrol connects it to this one")
	f.StringVar(&o.TokenFile, "token-file", "", "with --pull: the file to which the agent's token is written")
	f.BoolVar(&o.Local, "local", false, "add the cluster that has the resources itself")
	f.StringVar(&o.SecretNamespace, "secret-namespace", metav1.NamespaceSystem,
		"namespace of that Secret: one that is read, if the hub is an operator with --source-namespaces")
	f.StringArrayVarP(&o.Labels, "label", "l", nil, "label of the cluster, KEY=VALUE; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Name = args[0]
		c, err := k.connect("") // here --kubeconfig is the new cluster's
		if err != nil {
			return err
		}
		return c.AddCluster(cmd.Context(), o, command.Standard().Out)
	}
	return cmd
}

func (k commands) clusterRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a cluster that no resource is for",
		Args:  command.Exactly(1, "NAME"),
	}
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		return c.RemoveCluster(ctx, args[0], t.Out)
	}, clusterKind)
	k.Complete(cmd, 1, clusterList)
	return cmd
}

func (k commands) push() *cobra.Command {
	var o PushOptions
	cmd := &cobra.Command{
		Use:   "push DIR",
		Short: "Make a bundle of the files of a directory, or change it",
		Long: `Make a bundle of the YAML and JSON files of a directory and those below it, or change it. Its
objects are brought to the clusters one after the other; the annotation kontrol/wave of an object is
its wave, 0 without.

The files are in the bundle itself, up to 512 KiB, or in a registry with --artifact.`,
		Example: `  coracle kontrol push ./shop --selector env=prod --dry-run
  coracle kontrol push ./shop --selector env=prod
  coracle kontrol push ./shop --artifact registry.example.com/shop:v2`,
		Args: command.Exactly(1,
			"DIR [--name NAME] [--cluster NAME|--selector KEY=VALUE] [--namespace NAMESPACE] [--artifact HOST/PATH:TAG] "+
				"[--dry-run]"),
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the bundle (default the directory's)")
	f.StringVar(&o.Cluster, "cluster", "", "the cluster that should have the objects")
	f.StringVarP(&o.Selector, "selector", "l", "", "labels of the clusters that should have the objects")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of objects that need one and name none (default an error)")
	f.StringVar(&o.Artifact, "artifact", "", "push the files to this reference in a registry")
	f.StringVar(&o.Credentials, "docker-config", "", "docker configuration with credentials of the registry")
	f.BoolVar(&o.DryRun, "dry-run", false, "only show what would change")
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		o.Dir = args[0]
		return c.Push(ctx, o, t)
	})
	return cmd
}

func (k commands) approve() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "approve NAME|bundle/NAME",
		Short: "Approve a resource or a bundle as it is now",
		Args:  command.Exactly(1, "NAME|bundle/NAME [--dry-run]"),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be approved")
	k.onHub(cmd, func(ctx context.Context, c *cluster, args []string, t command.Terminal) error {
		return c.Approve(ctx, args[0], dryRun, t)
	}, resourceKind, bundleKind)
	return cmd
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// operator is a system's operator: reconcilers that can run outside Coracle.
type operator struct {
	system.System
}

// names returns the names of the operator's reconcilers.
func (o operator) names() []string { return systems.List{o.System}.Names() }

func operatorCommand(all systems.List) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run reconcilers of Coracle's own kinds on any Kubernetes",
		Long: `Runs the reconcilers that Coracle has inside in a process of their own, for the Kubernetes of the
kubeconfig, as whose user they read and write. Of several such processes one works, which holds a
Lease in kube-system.`,
	}
	for _, s := range all {
		if s.Operator != nil {
			cmd.AddCommand(operator{s}.command())
		}
	}
	return cmd
}

func (o operator) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: o.Name, Short: o.Operator.Short, Args: command.Exactly(0,
			"--kubeconfig FILE | --print-crds | --print-rbac | --print-manifests"),
		Example: fmt.Sprintf(`  coracle operator %[1]s --print-crds | kubectl apply --server-side -f -
  coracle operator %[1]s --print-rbac | kubectl apply -f -
  coracle operator %[1]s --kubeconfig admin.conf
  coracle operator %[1]s --print-manifests --image REGISTRY/coracle:TAG | kubectl apply -f -`, o.Name),
	}
	cluster := outside(cmd, o.Operator.Listen)
	definitions := cmd.Flags().Bool("print-crds", false, "print the definitions of the kinds, and end")
	rights := cmd.Flags().Bool("print-rbac", false, "print a service account with the rights that this needs, and end")
	manifests := cmd.Flags().Bool("print-manifests", false,
		"print a namespace with a deployment of this operator and its rights, and end")
	image := cmd.Flags().String("image", "coracle:"+version.Coracle, "image of the deployment that is printed")
	cmd.MarkFlagsMutuallyExclusive("print-crds", "print-rbac", "print-manifests", "kubeconfig")
	var namespaces []string
	if o.Operator.Sources {
		cmd.Flags().StringSliceVar(&namespaces, "source-namespaces", nil,
			"namespaces in which it reads the Secrets and ConfigMaps that Clusters and Bundles name (default all)")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *definitions:
			return command.PrintManifests(cmd.OutOrStdout(), own.CustomResources(o.Kinds)...)
		case *rights:
			return o.printRBAC(cmd.OutOrStdout(), namespaces)
		case *manifests:
			return o.printManifests(cmd.OutOrStdout(), *image, namespaces)
		}
		c, err := cluster()
		if err != nil {
			return err
		}
		d, err := discovery.NewDiscoveryClientForConfig(c.REST)
		if err != nil {
			return err
		}
		group := o.Kinds[0].Row.GroupVersion().String()
		if _, err := d.ServerResourcesForGroupVersion(group); apierrors.IsNotFound(err) {
			return fmt.Errorf("the cluster does not have %s: apply what `coracle operator %s --print-crds` prints", group,
				o.Name)
		} else if err != nil {
			return err
		}
		c.Only, c.SourceNamespaces = o.names(), namespaces
		return server.RunControllers(cmd.Context(), c)
	}
	return cmd
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/export"
	"github.com/coracle-dev/coracle/pkg/server"
	buildbarnsystem "github.com/coracle-dev/coracle/pkg/systems/buildbarn"
	kontrolsystem "github.com/coracle-dev/coracle/pkg/systems/kontrol"
)

// operator is a set of reconcilers of Coracle's own kinds that runs on any Kubernetes.
type operator struct {
	name, short string
	// group is the group and version of its kinds, definitions their definitions for servers that do not have them.
	group       string
	definitions func() []*apiextensionsv1.CustomResourceDefinition
	reconcilers []string
	listen      string
	// rights are what the reconcilers need on the API server, advice what its administrator may want to add to that: lines of comments.
	rights func() []rbacv1.PolicyRule
	advice string
	// sources: it reads Secrets and ConfigMaps that its objects name, and these can be kept to some namespaces.
	sources bool
}

// operators are the sets there are.
var operators = []operator{
	{name: "buildbarn", short: "Remote-execution farms of Buildbarn", group: buildbarn.GroupVersion.String(), definitions: buildbarnsystem.Definitions, listen: "127.0.0.1:10261", rights: buildbarnsystem.Rights,
		reconcilers: []string{"buildbarnscheduler", "buildbarnworker", "buildbarnstorage", "buildbarnfrontend", "buildbarnbrowser", "buildbarn"}},
	{name: "kontrol", short: "Kontrol: objects of many clusters as they should be", group: kontrol.GroupVersion.String(), definitions: kontrolsystem.Definitions, listen: "127.0.0.1:10262", rights: kontrolsystem.Rights,
		sources: true, advice: "# For a Cluster with spec.local, which is this API server itself, also bind the account to a role that may read and write the objects of your Resources.\n",
		reconcilers: []string{"kontrolcluster", "kontrol", "kontrolwatcher", "kontrolresource", "kontrolbundle"}},
}

func operatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run reconcilers of Coracle's own kinds on any Kubernetes",
		Long: `Runs the reconcilers that Coracle has inside in a process of their own, for the Kubernetes of the kubeconfig, as whose user they read and write.
Of several such processes one works, which holds a Lease in kube-system.`,
	}
	for _, o := range operators {
		cmd.AddCommand(o.command())
	}
	return cmd
}

func (o operator) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: o.name, Short: o.short, Args: exactly(0, "--kubeconfig FILE | --print-crds | --print-rbac"),
		Example: fmt.Sprintf(`  coracle operator %[1]s --print-crds | kubectl apply --server-side -f -
  coracle operator %[1]s --print-rbac | kubectl apply -f -
  coracle operator %[1]s --kubeconfig admin.conf`, o.name),
	}
	cluster := outside(cmd, o.listen)
	definitions := cmd.Flags().Bool("print-crds", false, "print the definitions of the kinds, and end")
	rights := cmd.Flags().Bool("print-rbac", false, "print a service account with the rights that this needs, and end")
	cmd.MarkFlagsMutuallyExclusive("print-crds", "print-rbac", "kubeconfig")
	var namespaces []string
	if o.sources {
		cmd.Flags().StringSliceVar(&namespaces, "source-namespaces", nil, "namespaces whose Secrets and ConfigMaps it reads, for those that Clusters and Bundles name (default all)")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *definitions:
			return export.Print(cmd.OutOrStdout(), o.definitions()...)
		case *rights:
			return o.printRBAC(cmd.OutOrStdout(), namespaces)
		}
		c, err := cluster()
		if err != nil {
			return err
		}
		d, err := discovery.NewDiscoveryClientForConfig(c.REST)
		if err != nil {
			return err
		}
		if _, err := d.ServerResourcesForGroupVersion(o.group); apierrors.IsNotFound(err) {
			return fmt.Errorf("the cluster does not have %s: apply what `coracle operator %s --print-crds` prints", o.group, o.name)
		} else if err != nil {
			return err
		}
		c.Only, c.SourceNamespaces = o.reconcilers, namespaces
		return server.RunControllers(cmd.Context(), c)
	}
	return cmd
}

package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// completionTimeout bounds the wait for the API server when a shell completes a name.
const completionTimeout = 2 * time.Second

// Complete makes the shell complete arguments with the names of a kind's objects, at most one Page. new returns an
// empty list of the kind. most is the number of arguments that are names; 0 means all.
func (c Connector) Complete(cmd *cobra.Command, most int, new func() ctrl.ObjectList) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd, args, start, new()), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFlag completes the value of a flag in the same way.
func (c Connector) CompleteFlag(cmd *cobra.Command, flag string, new func() ctrl.ObjectList) {
	_ = cmd.RegisterFlagCompletionFunc(flag, // fails only for a flag that does not exist, which a test would find
		func(cmd *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
			return c.names(cmd, nil, start, new()), cobra.ShellCompDirectiveNoFileComp
		})
}

// names returns the names that begin with start and are not in taken. After an error it returns none, because a shell
// cannot show the error.
func (c Connector) names(cmd *cobra.Command, taken []string, start string, list ctrl.ObjectList) (names []string) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	kubeconfig, _ := cmd.Flags().GetString("kubeconfig")
	namespace, _ := cmd.Flags().GetString("namespace")
	cluster, err := c.Connect(kubeconfig, namespace)
	if err != nil {
		return nil
	}
	if err := cluster.Client.List(ctx, list, ctrl.InNamespace(cluster.Namespace), ctrl.Limit(Page)); err != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		if m, err := meta.Accessor(o); err == nil && strings.HasPrefix(m.GetName(), start) &&
			!slices.Contains(taken, m.GetName()) {
			names = append(names, m.GetName())
		}
		return nil
	})
	return names
}

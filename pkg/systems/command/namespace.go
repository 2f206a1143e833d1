package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// CheckNamespace returns an error with the next step if the command's namespace does not exist. Commands call it when
// they have found nothing: for a namespace that does not exist the API server returns an empty list. It returns nil if
// the user may not read namespaces.
func (c *Cluster) CheckNamespace(ctx context.Context) error {
	err := c.Client.Get(ctx, ctrl.ObjectKey{Name: c.Namespace}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		return nil
	}
	return noNamespace(ctx, c, c.Namespace)
}

// noNamespace returns the error for a namespace that does not exist. It suggests the existing namespace whose name is
// most similar.
func noNamespace(ctx context.Context, c *Cluster, name string) error {
	var list corev1.NamespaceList
	if c.Client.List(ctx, &list, ctrl.Limit(Page)) == nil {
		names := make([]string, len(list.Items))
		for i := range list.Items {
			names[i] = list.Items[i].Name
		}
		if like := nearest(name, names); like != "" {
			return fmt.Errorf("there is no namespace %s: did you mean %s? `coracle get namespaces` lists all", name, like)
		}
	}
	return fmt.Errorf("there is no namespace %s: `coracle get namespaces` lists them, `coracle create namespace %[1]s` "+
		"creates it", name)
}

// nearest returns the name that differs from the given one by the fewest letters, or "" if all differ by many.
func nearest(name string, names []string) string {
	all := &cobra.Command{} // Cobra measures the distance of names, but only for commands
	for _, n := range names {
		all.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	most := max(len(name)/3, min(2, len(name)-1)) // two letters that are swapped count twice
	for all.SuggestionsMinimumDistance = 1; all.SuggestionsMinimumDistance <= most; all.SuggestionsMinimumDistance++ {
		if like := all.SuggestionsFor(name); len(like) > 0 {
			return like[0]
		}
	}
	return ""
}

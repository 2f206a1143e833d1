package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

// Kubeconfig is the name of the administrator's kubeconfig in the data directory.
const Kubeconfig = "kubeconfig"

// DataDir returns the data directory for commands without a data directory option.
func DataDir() string {
	if dir := os.Getenv("CORACLE_DATA_DIR"); dir != "" {
		return dir
	}
	return config.Default().DataDir
}

// UseCluster makes the cluster of dataDir this process's default, unless the user chose another with KUBECONFIG or the
// file cannot be read.
func UseCluster(dataDir string) {
	path := filepath.Join(dataDir, Kubeconfig)
	if os.Getenv("KUBECONFIG") != "" {
		return
	}
	if f, err := os.Open(path); err == nil {
		_ = f.Close()
		_ = os.Setenv("KUBECONFIG", path)
		if os.Getenv("KUBECACHEDIR") == "" {
			_ = os.Setenv("KUBECACHEDIR", filepath.Join(dataDir, "kubectl-cache"))
		}
	}
}

// Flags adds the flags that select the cluster and the namespace, and returns a function that connects to it.
func (c Connector) Flags(cmd *cobra.Command) func() (*Cluster, error) {
	kubeconfig := cmd.Flags().String("kubeconfig", "", "kubeconfig of the cluster (default this machine's)")
	namespace := cmd.Flags().StringP("namespace", "n", "", "namespace (default the kubeconfig's)")
	return func() (*Cluster, error) { return c.Connect(*kubeconfig, *namespace) }
}

// OnCluster adds the flags that select the cluster, and makes the command connect to it and call f.
func (c Connector) OnCluster(cmd *cobra.Command, f func(ctx context.Context, c *Cluster, args []string) error) {
	cluster := c.Flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := cluster()
		if err != nil {
			return err
		}
		return explain(cmd.Context(), c, f(cmd.Context(), c, args))
	}
}

// explain adds the next step to the API server's error for a namespace that does not exist.
func explain(ctx context.Context, c *Cluster, err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return err
	}
	if d := status.Status().Details; d != nil && d.Kind == "namespaces" {
		return noNamespace(ctx, c, d.Name)
	}
	return err
}

// Names reads arguments that name objects as kubectl does: NAME, or KIND/NAME, where KIND is a kind's singular, plural
// or short name, with or without its group. kinds are the singular names that the command accepts. The result has the
// bare name for the first of them, and SINGULAR/NAME for the others.
func (c Connector) Names(args []string, kinds ...string) ([]string, error) {
	names := make([]string, len(args))
	for i, arg := range args {
		kind, name, both := strings.Cut(arg, "/")
		if !both {
			names[i] = arg
			continue
		}
		at := slices.IndexFunc(c.Kinds, func(r metav1.APIResource) bool {
			short, group, grouped := strings.Cut(kind, ".")
			all := append([]string{r.SingularName, r.Name}, r.ShortNames...)
			return slices.Contains(all, short) && (!grouped || group == r.Group) && slices.Contains(kinds, r.SingularName)
		})
		switch {
		case at < 0 || name == "":
			return nil, fmt.Errorf("%q does not name a %s, which this command takes: use NAME or %s/NAME", arg,
				strings.Join(kinds, " or a "), strings.Join(kinds, "/NAME or "))
		case c.Kinds[at].SingularName == kinds[0]:
			names[i] = name
		default:
			names[i] = c.Kinds[at].SingularName + "/" + name
		}
	}
	return names, nil
}

package command

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

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
		return f(cmd.Context(), c, args)
	}
}

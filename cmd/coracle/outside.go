package main

import (
	"errors"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func schedulerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Run the scheduler alone, for any cluster",
		Long: `Runs the scheduler in a process of its own, for the cluster of the kubeconfig: Coracle with "server
--disable scheduler", or another Kubernetes without its own. Of several such processes one works,
which holds the Lease kube-scheduler in kube-system.`,
		Args: command.Exactly(0, "--kubeconfig FILE"),
	}
	o := outside(cmd, "127.0.0.1:10259")
	configuration := cmd.Flags().String("scheduler-config", "",
		"KubeSchedulerConfiguration file: profiles by schedulerName, weights of scores, and the scoring strategy of "+
			"resources")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := o()
		if err != nil {
			return err
		}
		c.SchedulerConfig = *configuration
		return server.RunScheduler(cmd.Context(), c)
	}
	return cmd
}

func controllersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Run reconcilers alone, for any cluster",
		Long: `Runs the reconcilers in a process of their own, for the cluster of the kubeconfig: Coracle with
"server --disable controllers", or another Kubernetes without its own. They write as the
kubeconfig's user, who needs their rights. Of several such processes one works, which holds the
Lease kube-controller-manager in kube-system; with --only, each set of reconcilers has a Lease of
its own.

What needs the inside of a server does not run here: the status of resource quotas, and the signing
of certificates. Autoscalers read the metrics of pods through the API server, which needs the right
to get nodes/proxy.`,
		Example: `  coracle controllers --kubeconfig admin.conf
  coracle controllers --kubeconfig admin.conf --only job,cronjob`,
		Args: command.Exactly(0, "--kubeconfig FILE [--only a,b]"),
	}
	o := outside(cmd, "127.0.0.1:10257")
	only := cmd.Flags().StringSlice("only", nil, "names of the reconcilers to run (default all)")
	cidr := cmd.Flags().String("cluster-cidr", "", "addresses of pods, a /24 for each node (default none are allocated)")
	grace := cmd.Flags().Duration("node-monitor-grace-period", config.Default().NodeMonitorGracePeriod,
		"how long a node may go without heartbeats before it is marked Unknown")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := o()
		if err != nil {
			return err
		}
		if *grace <= 0 {
			return errors.New("node-monitor-grace-period must be positive")
		}
		c.Only, c.ClusterCIDR, c.NodeMonitorGracePeriod = *only, *cidr, *grace
		return server.RunControllers(cmd.Context(), c)
	}
	return cmd
}

// outside adds the flags of a component that runs as a separate process. The returned function connects to its
// cluster.
func outside(cmd *cobra.Command, listen string) func() (server.Outside, error) {
	cluster := command.Connector{}.Flags(cmd)
	_ = cmd.Flags().MarkHidden("namespace")
	d, f := config.Default(), cmd.Flags()
	address := f.String("listen", listen,
		"address of /livez, /readyz, /metrics and the gRPC health service, which need no authentication")
	lease := f.String("lease", "", "name of the Lease in kube-system that elects one of several processes")
	level := f.String("log-level", d.LogLevel, "debug, info, warn or error")
	format := f.String("log-format", d.LogFormat, "text, or json: one object per line")
	return func() (server.Outside, error) {
		c, err := cluster()
		if err != nil {
			return server.Outside{}, err
		}
		return server.Outside{REST: c.REST, Listen: *address, Lease: *lease, LogLevel: *level, LogFormat: *format}, nil
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// etcdRestored lists the steps after restoring the objects of another cluster.
const etcdRestored = `restored the objects of an etcd snapshot. Before the first start:
  - start with that cluster's addresses: coracle start --service-cidr CIDR --cluster-cidr CIDR (kubeadm's services are in 10.96.0.0/12)
  - with --encryption-provider-config FILE if its API server had one
After it:
  - delete the nodes of that cluster, whose pods then start here: coracle ctl delete node NAME
  - delete what Coracle does itself, such as kubeadm's: coracle ctl -n kube-system delete daemonset/kube-proxy deployment/coredns
  - give people and programs new kubeconfigs: keys and tokens of that cluster are not valid here
`

const restoreHelp = `Restores the cluster in FILE, or else in the newest automatic snapshot, into the data directory of
this machine, in which no cluster runs. With --replace the old cluster there, if any, is kept in a
directory beside the new one. "coracle snapshot list" names the automatic snapshots; an older one is
the FILE DATA-DIR/snapshots/NAME.

This machine takes the node name of the server that was saved, unless "coracle start --node-name"
gives another: then delete the old one, "coracle ctl delete node NAME". Other machines of the cluster
join the restored one by themselves if its address is the old one. Local volumes start empty:
"coracle help backup".

FILE may also be a snapshot of the etcd of another Kubernetes cluster, such as kubeadm's, written by
"etcdctl snapshot save". It has all objects, but no keys: clients, nodes and tokens of that cluster
are not let in.`

func snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "snapshot",
		Short:      "Save a cluster to a file, and restore it on any machine",
		SuggestFor: []string{"backup", "etcd-snapshot", "recover", "restore"},
		Long: `Saves everything that the cluster stores, and its keys, to one file, while it runs; and restores it,
here or on another machine.

  coracle snapshot save cluster.snapshot
  coracle snapshot restore cluster.snapshot      on a machine without a cluster
  coracle start

A server also takes a snapshot every hour, and keeps five (--snapshot-interval, --snapshot-retention):

  coracle snapshot list
  coracle stop
  coracle snapshot restore --replace             the newest, or name its file
  coracle start

It has no container images, logs or volumes. Images are pulled again, or loaded:
"coracle image load".`,
	}
	save := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the cluster; - writes to standard output",
		Args:  command.Exactly(1, "FILE"),
	}
	onMachine(save, func(ctx context.Context, c config.Config, args []string) error {
		return cli.SaveSnapshot(ctx, c.RunDir, args[0], os.Stdout)
	})
	list := &cobra.Command{
		Use: "list", Short: "List the automatic snapshots on this machine", Args: command.Exactly(0, "[-o json|yaml]"),
	}
	output := list.Flags().StringP("output", "o", "", "json or yaml, for programs")
	onMachine(list, func(_ context.Context, c config.Config, _ []string) error {
		return server.ListSnapshots(c.DataDir, *output, os.Stdout)
	})
	restore := &cobra.Command{
		Use: "restore [FILE]", Short: "Restore a cluster that is not running; - reads standard input",
		Args: command.AtMost(1, "[FILE]"),
		Long: restoreHelp,
	}
	replace := restore.Flags().Bool("replace", false, "move a cluster that is there aside")
	onMachine(restore, func(ctx context.Context, c config.Config, args []string) error {
		file, err := server.SnapshotFile(c.DataDir, args)
		if err != nil {
			return err
		}
		in := os.Stdin
		if file != "-" {
			if in, err = os.Open(file); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no snapshot %s: `coracle snapshot list` names the automatic ones", file)
			}
			if err != nil {
				return err
			}
			defer in.Close()
		}
		m, old, err := server.RestoreSnapshot(ctx, c, in, *replace)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if old != "" {
			fmt.Printf("the cluster that was here is in %s now: delete it once the restored one works\n", old)
		}
		if m.Etcd {
			fmt.Print(etcdRestored)
			return nil
		}
		if m.EncryptionConfig != "" {
			fmt.Printf("stored objects are encrypted with the keys of %s, which the snapshot does not contain: start with "+
				"--encryption-provider-config\n", m.EncryptionConfig)
		}
		fmt.Printf("restored the cluster of node %s as of %s: `coracle start` starts it\n", m.Node,
			m.Taken.Local().Format(time.DateTime))
		return nil
	})
	cmd.AddCommand(save, list, restore)
	return cmd
}

package commands

import (
	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/systems/command"
)

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
			"DIR [--name NAME] [--cluster NAME|--selector KEY=VALUE] [--artifact HOST/PATH:TAG] [--dry-run]"),
	}
	cluster := k.hub(cmd)
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the bundle (default the directory's)")
	f.StringVar(&o.Cluster, "cluster", "", "the cluster that should have the objects")
	f.StringVarP(&o.Selector, "selector", "l", "", "labels of the clusters that should have the objects")
	f.StringVar(&o.Artifact, "artifact", "", "push the files to this reference in a registry")
	f.StringVar(&o.Credentials, "docker-config", "", "docker configuration with credentials of the registry")
	f.BoolVar(&o.DryRun, "dry-run", false, "only show what would change")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Dir = args[0]
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Push(cmd.Context(), o, command.Standard())
	}
	return cmd
}

func (k commands) approve() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "approve NAME|bundle/NAME",
		Short: "Approve a resource or a bundle as it is now",
		Args:  command.Exactly(1, "NAME|bundle/NAME [--dry-run]"),
	}
	cluster := k.hub(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be approved")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args, err := k.Names(args, resourceKind, bundleKind)
		if err != nil {
			return err
		}
		c, err := cluster()
		if err != nil {
			return err
		}
		return c.Approve(cmd.Context(), args[0], dryRun, command.Standard())
	}
	return cmd
}

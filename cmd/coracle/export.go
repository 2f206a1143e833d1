package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/cli/export"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func exportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "export", Short: "Write a running cluster as manifests",
		Args: exportArgs,
		Long: `Writes what people made in a cluster as manifests that another cluster, of Coracle or any other
Kubernetes, can be made from. Custom resources are included. Left out are fields that servers set,
objects that controllers own, objects that every cluster makes for itself, nodes, events,
dynamically provisioned volumes, and pods, jobs and tasks that have ended. Data of volumes is not
exported; "coracle snapshot" saves the store as it is.

Secrets are in clear text, and only if --include-secrets says so; tokens of service accounts and join
tokens never are.

A directory has definitions, cluster-scoped objects, the objects of each namespace, and webhooks and
policies of admission, to be applied in this order:

  coracle export --dir cluster
  kubectl apply --server-side -R -f cluster/1-definitions
  kubectl apply --server-side -R -f cluster/2-cluster -f cluster/3-namespaces
  kubectl apply --server-side -R -f cluster/4-admission

Folders without objects are left out. A single file can be applied, too; apply it twice if it defines
custom resources, which kubectl does not know the first time.`,
		Example: `  coracle export > cluster.yaml
  coracle export -n shop -o shop.yaml
  coracle export --dir cluster --include-secrets`,
	}
	cluster := command.Connector{}.Flags(cmd)
	f := cmd.Flags()
	f.Lookup("namespace").Usage = "export only this namespace"
	dir := f.String("dir", "", "a new or empty directory to write a file for each kind and namespace to")
	file := f.StringP("output", "o", "-", "the file to write all to; - is standard output")
	all := f.BoolP("all-namespaces", "A", false, "export the whole cluster, as without -n")
	secrets := f.Bool("include-secrets", false, "export Secrets too, in clear text")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o := export.Options{Secrets: *secrets, Warn: func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", text) }}
		switch {
		case *dir != "" && f.Changed("output"):
			return errors.New("--dir and -o exclude each other: name a directory or a file")
		case *all && f.Changed("namespace"):
			return errors.New("-n and -A exclude each other: name a namespace, or none for the whole cluster")
		case f.Changed("dir") && *dir == "", *file == "",
			f.Changed("namespace") && f.Lookup("namespace").Value.String() == "":
			return errors.New("--dir, -o and -n need a value")
		}
		c, err := cluster()
		if err != nil {
			return err
		}
		if f.Changed("namespace") {
			o.Namespace = c.Namespace
		}
		out, err := exportTo(cmd, *dir, *file)
		if err != nil {
			return err
		}
		result, err := export.Export(cmd.Context(), c.REST, o, out)
		if err == nil {
			err = out.Commit()
		}
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
		if *dir != "" || *file != "-" {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s exported\n", count.Of(result.Objects, "object"))
		}
		if !o.Secrets {
			fmt.Fprintln(cmd.ErrOrStderr(), "Secrets are left out: --include-secrets exports them, in clear text")
		}
		return nil
	}
	return cmd
}

func exportTo(cmd *cobra.Command, dir, file string) (export.Output, error) {
	switch {
	case dir != "":
		return export.ToDirectory(dir)
	case file != "-":
		return export.ToFile(file)
	}
	return export.ToWriter(cmd.OutOrStdout()), nil
}

// exportArgs refuses arguments, and answers two that kind's export takes.
func exportArgs(cmd *cobra.Command, args []string) error {
	what := ""
	if len(args) > 0 {
		what = args[0]
	}
	switch what {
	case "logs":
		return errors.New("coracle export writes the cluster's objects: for its logs use `coracle support-bundle`, and for " +
			"the pods' output `coracle ctl cluster-info dump -A --output-directory DIR`")
	case "kubeconfig":
		return errors.New("coracle export writes the cluster's objects: the path of the kubeconfig is in `coracle status`")
	}
	return command.Exactly(0, "[--dir DIR | -o FILE] [-n NAMESPACE | -A] [--include-secrets]")(cmd, args)
}

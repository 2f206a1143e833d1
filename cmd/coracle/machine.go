package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show what runs on this machine", Args: command.Exactly(0, "[-o wide|json]"),
		SuggestFor: []string{"cluster", "info", "kubeconfig"},
	}
	output := cmd.Flags().StringP("output", "o", "", "wide, with each component, or json, for programs")
	onMachine(cmd, func(ctx context.Context, c config.Config, _ []string) error {
		return cli.Status(ctx, c.RunDir, c.DataDir, *output, os.Stdout)
	})
	return cmd
}

func stopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "stop",
		SuggestFor: []string{"down"},
		Short:      "Stop the pods, then Coracle; the state is kept",
		Args:       command.Exactly(0, ""),
	}
	onMachine(cmd, func(ctx context.Context, c config.Config, _ []string) error {
		err := server.Stop(ctx, c, func(e socket.Event) { fmt.Println("  " + e.Message) })
		if errors.Is(err, socket.ErrNotRunning) {
			fmt.Println("Coracle is not running.")
			return nil
		}
		if err == nil {
			resume := "`coracle start` resumes the cluster"
			if server.IsNode(c.DataDir) {
				resume = "`coracle agent --join https://SERVER:6443` resumes this node"
			}
			fmt.Printf("Stopped. %s.\n", resume)
		}
		return err
	})
	return cmd
}

func deleteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the cluster, and restore the machine as it was",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] == "cluster" {
				return errors.New("this machine has one cluster: `coracle delete`, without a name, deletes it")
			}
			if len(args) > 0 {
				return fmt.Errorf("coracle delete deletes the whole cluster and takes no names: to delete an object, use "+
					"`coracle ctl delete %s`", strings.Join(args, " "))
			}
			return nil
		},
	}
	onMachine(cmd, func(ctx context.Context, c config.Config, _ []string) error {
		found := server.HasState(c)
		if err := server.Delete(ctx, c, func(e socket.Event) { fmt.Println("  " + e.Message) }); err != nil {
			return err
		}
		if !found {
			fmt.Printf("There was nothing to delete: neither %s nor %s exists.\n", c.DataDir, c.RunDir)
			return nil
		}
		fmt.Println("Deleted. Nothing of the cluster is left on this machine.")
		return nil
	})
	return cmd
}

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "Load, list, pull and remove images on this machine's node",
		SuggestFor: []string{"load", "pull"},
	}
	sub := func(use, short string, args cobra.PositionalArgs,
		run func(ctx context.Context, runDir string, args []string) error, aliases ...string) {
		c := &cobra.Command{Use: use, Short: short, Args: args, Aliases: aliases}
		onMachine(c, func(ctx context.Context, c config.Config, args []string) error { return run(ctx, c.RunDir, args) })
		cmd.AddCommand(c)
	}
	sub("load FILE...|-", `Load OCI or docker archives ("-" is standard input)`, command.AtLeast(1, "FILE...|-"),
		func(ctx context.Context, dir string, args []string) error {
			return cli.LoadImages(ctx, dir, args, os.Stdin, os.Stdout, os.Stderr)
		})
	sub("ls", "List images", command.Exactly(0, ""), func(ctx context.Context, dir string, _ []string) error {
		return cli.Images(ctx, dir, os.Stdout)
	}, "list")
	sub("pull IMAGE", "Pull an image from its registry", command.Exactly(1, "IMAGE"),
		func(ctx context.Context, dir string, args []string) error {
			return cli.PullImage(ctx, dir, args[0], os.Stdout, os.Stderr)
		})
	sub("rm IMAGE...", "Remove images by name or ID", command.AtLeast(1, "IMAGE..."),
		func(ctx context.Context, dir string, args []string) error {
			return cli.RemoveImages(ctx, dir, args, os.Stdout)
		}, "remove")
	return cmd
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: command.Exactly(0, "[-o json]")}
	output := cmd.Flags().StringP("output", "o", "", "json, for programs")
	cmd.RunE = func(*cobra.Command, []string) error {
		switch *output {
		case "json":
			return writeVersion(os.Stdout)
		case "":
			fmt.Println(versionText())
			return nil
		}
		return fmt.Errorf("output %q is not known: leave it out, or use json", *output)
	}
	return cmd
}

// versionText returns the output of `coracle version` and `coracle --version`.
func versionText() string {
	info := version.Info()
	return fmt.Sprintf("coracle %s%s, Kubernetes %s, %s, %s", version.Coracle, build(), version.Kubernetes, info.GoVersion,
		info.Platform)
}

func writeVersion(w io.Writer) error {
	info := version.Info()
	return json.NewEncoder(w).Encode(map[string]any{
		"coracle": version.Coracle, "commit": info.GitCommit, "treeState": info.GitTreeState, "buildDate": info.BuildDate,
		"kubernetes": info,
	})
}

// build returns the commit and date of the version, such as " (0123456789ab, 2026-11-22)".
func build() string {
	commit, changed := version.Commit()
	if commit == "" {
		return ""
	}
	text := commit[:min(12, len(commit))]
	if changed {
		text += " modified"
	}
	if day, _, ok := strings.Cut(version.Date(), "T"); ok {
		text += ", " + day
	}
	return " (" + text + ")"
}

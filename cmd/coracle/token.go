package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create, list and revoke join tokens"}
	dataDir := cmd.PersistentFlags().String("data-dir", "", "data directory of the cluster on this machine")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if *dataDir == "" || cmd.Flags().Changed("kubeconfig") {
			return nil
		}
		return cmd.Flags().Set("kubeconfig", filepath.Join(*dataDir, command.Kubeconfig))
	}
	create := &cobra.Command{
		Use:   "create",
		Short: "Create a join token and print it; it cannot be shown again",
		Args:  command.Exactly(0, "[--ttl DURATION] [--description TEXT] [--print-join-command]"),
	}
	life := create.Flags().Duration("ttl", jointoken.DefaultLife, "lifetime of the token; 0 means until it is revoked")
	description := create.Flags().String("description", "", "what the token is for")
	join := create.Flags().Bool("print-join-command", false, "print the full command for joining a machine")
	command.Connector{}.OnCluster(create, func(ctx context.Context, c *command.Cluster, _ []string) error {
		return cli.CreateToken(ctx, c, *life, *description, *join, os.Stdout)
	})
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the tokens, without their secrets",
		Args:    command.Exactly(0, ""),
	}
	command.Connector{}.OnCluster(list, func(ctx context.Context, c *command.Cluster, _ []string) error {
		return cli.Tokens(ctx, c, os.Stdout)
	})
	revoke := &cobra.Command{
		Use:     "revoke ID...",
		Aliases: []string{"delete", "rm"},
		Short:   "Revoke join tokens; machines that joined with one stay",
		Args:    command.AtLeast(1, "ID..."),
	}
	command.Connector{}.OnCluster(revoke, func(ctx context.Context, c *command.Cluster, args []string) error {
		return cli.RevokeTokens(ctx, c, args, os.Stdout)
	})
	cmd.AddCommand(create, list, revoke)
	return cmd
}

// readToken reads the token from a file or standard input if the options say so.
func readToken(c *config.Config, stdin io.Reader) error {
	read := func(from string, r io.Reader) error {
		text, err := bounded.All(r, jointoken.MaxLength)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		if c.Token = strings.TrimSpace(string(text)); c.Token == "" {
			return fmt.Errorf("%s contains no join token", from)
		}
		return nil
	}
	switch {
	case c.Token == "-":
		return read("standard input", stdin)
	case c.TokenFile != "":
		f, err := os.Open(c.TokenFile) // may be a pipe, so any file type is allowed
		if err != nil {
			return err
		}
		defer f.Close()
		return read(c.TokenFile, f)
	}
	return nil
}

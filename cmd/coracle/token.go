package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/cli"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create, list and revoke join tokens"}
	create := &cobra.Command{
		Use:   "create",
		Short: "Create a join token and print it; it cannot be shown again",
		Args:  exactly(0, "[--ttl DURATION] [--description TEXT] [--print-join-command]"),
	}
	life := create.Flags().Duration("ttl", jointoken.DefaultLife, "lifetime of the token; 0 means until it is revoked")
	description := create.Flags().String("description", "", "what the token is for")
	command := create.Flags().Bool("print-join-command", false, "print the full command for joining a machine")
	onCluster(create, func(ctx context.Context, c *cli.Cluster, _ []string) error {
		return c.CreateToken(ctx, *life, *description, *command, os.Stdout)
	})
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the tokens, without their secrets", Args: exactly(0, "")}
	connectList := connect(list)
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connectList()
		if err != nil {
			return err
		}
		return c.Tokens(cmd.Context(), os.Stdout)
	}
	revoke := &cobra.Command{
		Use:     "revoke ID...",
		Aliases: []string{"delete", "rm"},
		Short:   "Revoke join tokens; machines that joined with them stay in the cluster",
		Args:    cobra.MinimumNArgs(1),
	}
	connectRevoke := connect(revoke)
	revoke.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := connectRevoke()
		if err != nil {
			return err
		}
		return c.RevokeTokens(cmd.Context(), args, os.Stdout)
	}
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
		f, err := os.Open(c.TokenFile) // not necessarily a regular file: a credential may come through a pipe
		if err != nil {
			return err
		}
		defer f.Close()
		return read(c.TokenFile, f)
	}
	return nil
}

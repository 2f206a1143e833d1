package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// accountOverlap is how long tokens signed by the previous key remain valid. Pods get new tokens within an hour.
// The longer time is for programs that keep the first token they read.
const accountOverlap = 30 * 24 * time.Hour

func certsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "certs", Short: "Show and rotate the keys and certificates of this machine"}
	check := &cobra.Command{
		Use:   "check",
		Short: "List keys and certificates with their age and expiry",
		Args:  command.Exactly(0, ""),
	}
	onMachine(check, func(ctx context.Context, c config.Config, _ []string) error {
		return cli.Certs(ctx, c.DataDir, c.RunDir, os.Stdout)
	})
	cmd.AddCommand(check, rotateCommand())
	return cmd
}

func rotateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate (--service-account | --ca[=AUTHORITY,...] [--finish])",
		Short: "Rotate keys and certificate authorities while the cluster runs",
		Long: `With --service-account, replaces the key that signs service account tokens. Nothing is restarted:
pods get tokens signed with the new key when they renew theirs, and tokens of the old key stay valid
for --overlap. If the key may be compromised, use --overlap 0: its tokens become invalid
immediately, and pods that use one are rejected until they have a new one.

With --ca, replaces the certificate authorities: all of them, or the named ones. server signs the
certificate of the API, client the certificates of users and nodes, node the certificates that nodes
serve with. Nothing restarts and no client is locked out: the new authorities sign, and both are
trusted. Nodes renew their certificates within seconds; the admin kubeconfig and kube-root-ca.crt in
each namespace are updated. "coracle certs check" lists who still depends on the old ones. Issue new
certificates to other users, and restart pods that read kube-root-ca.crt only once.

With --ca --finish, removes trust in the old ones. It fails while a node, or a client certificate
that was used within the last hour, depends on them; --force overrides this if a key may be
compromised. Nodes that were locked out must join again with a token. Join tokens work as long as
the authority they were created for is trusted: create new ones after --ca.`,
		Args: command.Exactly(0, "--service-account [--overlap DURATION] or --ca [--finish]"),
	}
	load := configure(cmd)
	account := cmd.Flags().Bool("service-account", false, "rotate the signing key of service account tokens")
	overlap := cmd.Flags().Duration("overlap", accountOverlap,
		"how long tokens signed with the old service account key stay valid")
	authorities := cmd.Flags().StringSlice("ca", nil,
		"replace certificate authorities: server, client, node; all if none is named")
	cmd.Flags().Lookup("ca").NoOptDefVal = allAuthorities
	finish := cmd.Flags().Bool("finish", false, "remove trust in the replaced authorities")
	force := cmd.Flags().Bool("force", false, "finish even if nodes or users are locked out")
	cmd.MarkFlagsMutuallyExclusive("service-account", "ca")
	cmd.MarkFlagsMutuallyExclusive("service-account", "finish")
	cmd.MarkFlagsMutuallyExclusive("overlap", "ca")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *force && !*finish:
			return errors.New("--force requires --finish")
		case !*account && len(*authorities) == 0:
			return errors.New("specify what to rotate: --service-account for the signing key of service account tokens, --ca " +
				"for certificate authorities")
		}
		c, err := load()
		if err != nil {
			return err
		}
		names := *authorities
		if slices.Contains(names, allAuthorities) {
			names = nil
		}
		switch {
		case *account:
			return cli.RotateServiceAccountKey(cmd.Context(), c.RunDir, *overlap, os.Stdout)
		case *finish:
			return cli.FinishAuthorities(cmd.Context(), c.RunDir, names, *force, os.Stdout)
		}
		return cli.RotateAuthorities(cmd.Context(), c.RunDir, names, os.Stdout)
	}
	return cmd
}

// allAuthorities is the value of --ca if no name follows.
const allAuthorities = "all"

package main

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/ctl"
)

// accountOverlap is how long tokens of an earlier key are good. Pods get new tokens within an hour; the rest is for programs that
// hold on to the first one that they have read.
const accountOverlap = 30 * 24 * time.Hour

func certsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "certs", Short: "Show and rotate the keys and certificates of this machine"}
	check := &cobra.Command{Use: "check", Short: "List keys and certificates, with their age and end, and how far a rotation is", Args: exactly(0, "")}
	commonFlags(check.Flags())
	check.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load(cmd)
		if err != nil {
			return err
		}
		return ctl.Certs(cmd.Context(), c.DataDir, c.RunDir, os.Stdout)
	}
	cmd.AddCommand(check, rotateCommand())
	return cmd
}

func rotateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate (--service-account | --ca[=AUTHORITY,...] [--finish])",
		Short: "Replace keys while the cluster runs",
		Long: `With --service-account, replaces the key that signs service account tokens. Nothing is restarted: pods get tokens of the new key as
they renew theirs, and tokens of the earlier key are good for --overlap more. If the key may have been stolen, use --overlap 0: its
tokens are worthless at once, and pods that hold one are refused until they have a new one.

With --ca, replaces the certificate authorities: all of them, or those named (server signs the API's certificate, client those of users and
nodes, node what nodes serve). Nothing is restarted and nobody is shut out: from then on the new ones sign, and both are trusted. Nodes
renew their certificates within seconds, the administrator's kubeconfig and kube-root-ca.crt in each namespace are rewritten.
"coracle certs check" shows who still depends on the old ones. Give other users their new certificates, and restart pods that read
kube-root-ca.crt only once.

With --ca --finish, ends the trust in the old ones. It is refused while a node, or a client certificate that was used within the last
hour, depends on them; --force does it all the same, if a key may have been stolen. Nodes that were shut out join again with a
token. Join tokens work as long as the authority that they were made for is trusted: make new ones after --ca.`,
		Args: exactly(0, "--service-account [--overlap DURATION] or --ca [--finish]"),
	}
	commonFlags(cmd.Flags())
	account := cmd.Flags().Bool("service-account", false, "the key of service account tokens")
	overlap := cmd.Flags().Duration("overlap", accountOverlap, "how long what the earlier key of service account tokens has signed is good")
	authorities := cmd.Flags().StringSlice("ca", nil, "the certificate authorities: server, client, node, or all if none is named")
	cmd.Flags().Lookup("ca").NoOptDefVal = allAuthorities
	finish := cmd.Flags().Bool("finish", false, "end the trust in the authorities that were replaced")
	force := cmd.Flags().Bool("force", false, "finish even if somebody is shut out")
	cmd.MarkFlagsMutuallyExclusive("service-account", "ca")
	cmd.MarkFlagsMutuallyExclusive("service-account", "finish")
	cmd.MarkFlagsMutuallyExclusive("overlap", "ca")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *force && !*finish:
			return errors.New("--force goes with --finish")
		case !*account && len(*authorities) == 0:
			return errors.New("what is to be rotated? --service-account is the key of service account tokens, --ca the certificate authorities")
		}
		c, err := load(cmd)
		if err != nil {
			return err
		}
		names := *authorities
		if slices.Contains(names, allAuthorities) {
			names = nil
		}
		switch {
		case *account:
			return ctl.RotateServiceAccountKey(cmd.Context(), c.RunDir, *overlap, os.Stdout)
		case *finish:
			return ctl.FinishAuthorities(cmd.Context(), c.RunDir, names, *force, os.Stdout)
		}
		return ctl.RotateAuthorities(cmd.Context(), c.RunDir, names, os.Stdout)
	}
	return cmd
}

// allAuthorities is what --ca means without a name.
const allAuthorities = "all"

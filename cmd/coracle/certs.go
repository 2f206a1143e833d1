package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/ctl"
)

// accountOverlap is how long tokens of an earlier key are good. Pods get new tokens within an hour; the rest is for programs that
// hold on to the first one that they have read.
const accountOverlap = 30 * 24 * time.Hour

func certsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "certs", Short: "Show and rotate the keys and certificates of this machine"}
	check := &cobra.Command{Use: "check", Short: "List keys and certificates, with their age and end", Args: exactly(0, "")}
	commonFlags(check.Flags())
	check.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load(cmd)
		if err != nil {
			return err
		}
		return ctl.Certs(c.DataDir, os.Stdout)
	}
	rotate := &cobra.Command{
		Use:   "rotate --service-account",
		Short: "Replace a key while the cluster runs",
		Long: `Replaces the key that signs service account tokens. Nothing is restarted: pods get tokens of the new key as they renew theirs, and
tokens of the earlier key are good for --overlap more. If the key may have been stolen, use --overlap 0: its tokens are worthless at
once, and pods that hold one are refused until they have a new one.`,
		Args: exactly(0, "--service-account [--overlap DURATION]"),
	}
	commonFlags(rotate.Flags())
	account := rotate.Flags().Bool("service-account", false, "the key of service account tokens")
	overlap := rotate.Flags().Duration("overlap", accountOverlap, "how long what the earlier key has signed is good")
	rotate.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*account {
			return errors.New("what is to be rotated? --service-account is the key of service account tokens")
		}
		c, err := load(cmd)
		if err != nil {
			return err
		}
		return ctl.RotateServiceAccountKey(cmd.Context(), c.RunDir, *overlap, os.Stdout)
	}
	cmd.AddCommand(check, rotate)
	return cmd
}

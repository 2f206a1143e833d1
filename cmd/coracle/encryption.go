package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func encryptionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets-encrypt",
		Short: "Show and change how Secrets are encrypted in the store",
		Long: `Shows and changes how Secrets, and other objects, are encrypted in the store of the server on this
machine, which was started with --secrets-encryption or --encryption-provider-config.

To turn encryption on for a cluster: coracle stop; coracle start --secrets-encryption; coracle
secrets-encrypt reencrypt. To turn it off: disable, then reencrypt; later starts need no option.

Backups of the store are useless without the keys: back up the file that "status" names, but store
it separately.`,
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "Show the key in use, and how many objects each key encrypts",
		Args:  command.Exactly(0, "[-o json]"),
	}
	output := status.Flags().StringP("output", "o", "", "json, for programs")
	onMachine(status, func(ctx context.Context, c config.Config, _ []string) error {
		return cli.Encryption(ctx, c.RunDir, *output, os.Stdout)
	})
	cmd.AddCommand(status)
	change := func(action, short, long string) {
		sub := &cobra.Command{Use: action, Short: short, Long: long, Args: command.Exactly(0, "")}
		onMachine(sub, func(ctx context.Context, c config.Config, _ []string) error {
			return cli.ChangeEncryption(ctx, c.RunDir, action, os.Stdout)
		})
		cmd.AddCommand(sub)
	}
	change(socket.EncryptionRotate, "Replace the key of --secrets-encryption while the cluster runs",
		`Adds a new key, re-encrypts every encrypted object with it, verifies that the old keys are no longer
needed, and removes them. It can be interrupted at any time, even by a crash: run it again to
resume.`)
	change(socket.EncryptionReencrypt, "Rewrite all objects that are not stored as configured",
		`Rewrites objects that are encrypted with another key than new ones, or not encrypted. Where identity
is the first provider it decrypts them. Clients see a new resourceVersion of these objects, and no
other change.`)
	change(socket.EncryptionEnable, "Encrypt Secrets on write again, after disable", "")
	change(socket.EncryptionDisable, "Stop encrypting Secrets; reencrypt decrypts existing ones", "")
	return cmd
}

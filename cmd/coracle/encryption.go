package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/control"
	"github.com/coracle-dev/coracle/pkg/ctl"
)

func encryptionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets-encrypt",
		Short: "Show and change how Secrets are encrypted in the store",
		Long: `Shows and changes how Secrets, and other objects, are encrypted in the store of the server on this machine, which was started with
--secrets-encryption or --encryption-provider-config.

To turn encryption on for a cluster: coracle stop; coracle start --secrets-encryption; coracle secrets-encrypt reencrypt.
To turn it off: disable, then reencrypt; the next start needs no option any more.

Backups of the store are of no use without the keys: keep the file that "status" names, but not beside them.`,
	}
	status := &cobra.Command{Use: "status", Short: "Show which key is in use, and how many objects are stored with it and with others", Args: exactly(0, "[-o json]")}
	commonFlags(status.Flags())
	output := status.Flags().StringP("output", "o", "", "json, for programs")
	status.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load(cmd)
		if err != nil {
			return err
		}
		return ctl.Encryption(cmd.Context(), c.RunDir, *output, os.Stdout)
	}
	cmd.AddCommand(status)
	change := func(action, short, long string) {
		sub := &cobra.Command{Use: action, Short: short, Long: long, Args: exactly(0, "")}
		commonFlags(sub.Flags())
		sub.RunE = func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			return ctl.ChangeEncryption(cmd.Context(), c.RunDir, action, os.Stdout)
		}
		cmd.AddCommand(sub)
	}
	change(control.EncryptionRotate, "Replace the key of --secrets-encryption while the cluster runs",
		`Adds a new key, writes every encrypted object anew with it, checks that nothing needs the earlier keys any more, and removes them.
It may be interrupted at any time, also by a crash: run it again, and it goes on where it was.`)
	change(control.EncryptionReencrypt, "Write everything anew that is not stored as the configuration says",
		`Writes objects anew that are stored with another key than new ones are, or without encryption. Where identity is the first provider
it decrypts. Clients see a new resourceVersion of these objects, and no other change.`)
	change(control.EncryptionEnable, "Encrypt Secrets again that are written from now on, after disable", "")
	change(control.EncryptionDisable, "Encrypt Secrets no longer that are written from now on; reencrypt then decrypts the others", "")
	return cmd
}

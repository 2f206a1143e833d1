package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Encryption prints how the server on this machine encrypts stored objects. output is "" or "json".
func Encryption(ctx context.Context, runDir, output string, out io.Writer) error {
	if output != "" && output != "json" {
		return fmt.Errorf("output %q is not known: leave it out, or use json", output)
	}
	e, err := socket.NewClient(runDir).Encryption(ctx)
	if err != nil {
		return err
	}
	if output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(e)
	}
	return printEncryption(e, out)
}

func printEncryption(e socket.Encryption, out io.Writer) error {
	if !e.Enabled {
		_, err := fmt.Fprintln(out, "Encryption is off. `coracle start --secrets-encryption` encrypts Secrets from then on.")
		return err
	}
	fmt.Fprintf(out, "Configuration: %s\n\n", e.File)
	err := command.Table(out, "RESOURCE\tNEW OBJECTS ARE WRITTEN WITH\tKEY", func(line func(...any)) {
		for _, w := range e.Writes {
			line(w.Resource, provider(w), w.Key)
		}
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	stale := 0
	err = command.Table(out, "RESOURCE\tSTORED WITH\tKEY\tOBJECTS\tNOTE", func(line func(...any)) {
		for _, c := range e.Stored {
			note := ""
			if !c.Current {
				stale += c.Objects - c.Unreadable
				note = "differs from new objects"
			}
			if c.Unreadable > 0 {
				note = fmt.Sprintf("%d cannot be read", c.Unreadable)
			}
			line(c.Resource, provider(c.EncryptionRule), c.Key, c.Objects, note)
		}
	})
	if err != nil {
		return err
	}
	if len(e.Stored) == 0 {
		fmt.Fprintln(out, "No such objects are stored.")
	}
	if stale > 0 {
		fmt.Fprintf(out, "\nNot stored as new objects are: %s. `coracle secrets-encrypt reencrypt` rewrites old ones.\n",
			count.Of(stale, "object"))
	}
	for _, w := range e.Warnings {
		fmt.Fprintf(out, "\nWarning: %s\n", w)
	}
	return nil
}

func provider(r socket.EncryptionRule) string { return cmp.Or(r.Provider, "no encryption") }

// ChangeEncryption asks the server on this machine to run one of socket's Encryption* actions and prints the progress.
func ChangeEncryption(ctx context.Context, runDir, action string, out io.Writer) error {
	return socket.NewClient(runDir).ChangeEncryption(ctx, action, func(e socket.Event) { fmt.Fprintln(out, e.Message) })
}

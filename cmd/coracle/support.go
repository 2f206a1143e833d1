package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli"
	"github.com/coracle-dev/coracle/pkg/cli/bundle"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func supportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect diagnostic data into one archive, without secrets",
		Long: `Collects the version, options, status, metrics, logs, nodes, pods, events, service rules, mounts,
goroutines and the expiry dates of certificates into one .tar.gz file of a few megabytes. Secrets,
keys and tokens are not included, and the values of environment variables are masked; still, review
it before you share it. It also works while Coracle is not running, and then says what it has.`,
		Args: command.Exactly(0, "[-o FILE]"),
	}
	output := cmd.Flags().StringP("output", "o", "",
		"file to write; - is standard output (default coracle-support-TIME.tar.gz)")
	onMachine(cmd, func(ctx context.Context, c config.Config, _ []string) error {
		options := c
		options.Token = ""
		gather := bundle.Config{
			DataDir: c.DataDir, RunDir: c.RunDir, Kubeconfig: filepath.Join(c.DataDir, command.Kubeconfig), Options: options,
			Rules:        func(w io.Writer) error { return server.DumpRules(c, w) },
			Version:      writeVersion,
			Certificates: func(w io.Writer) error { return cli.Certs(ctx, c.DataDir, c.RunDir, w) },
			Status: func(w io.Writer) error {
				err := cli.Status(ctx, c.RunDir, c.DataDir, "", w)
				if _, ok := errors.AsType[*cli.UnhealthyError](err); ok {
					return nil // the status already lists the unhealthy components
				}
				if errors.Is(err, socket.ErrNotRunning) {
					fmt.Fprintln(w, "Coracle is not running.")
				}
				return err
			},
		}
		if *output == "-" {
			return bundle.Write(ctx, gather, os.Stdout, os.Stderr)
		}
		if *output == "" {
			*output = "coracle-support-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
		}
		f, err := os.OpenFile(*output, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(bundle.Write(ctx, gather, f, os.Stderr), f.Close()); err != nil {
			return err
		}
		fmt.Println("Wrote " + *output +
			". Review it before you share it: it contains names of objects, images and addresses.")
		return nil
	})
	return cmd
}

package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/cli"
)

func sendCommand() *cobra.Command {
	var o cli.SendOptions
	cmd := &cobra.Command{
		Use:   "send pod|service/NAME [PAYLOAD]",
		Short: "Send a message to a worker's pod or service",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 || (len(args) == 2) == (o.File != "") {
				return errors.New("usage: coracle send pod|service/NAME PAYLOAD|-f FILE [--batch] [--wait] [--timeout D]")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&o.File, "filename", "f", "", "file with the message, - for standard input")
	cmd.Flags().BoolVar(&o.Wait, "wait", false, "wait for the reply and print it")
	cmd.Flags().BoolVar(&o.Batch, "batch", false, "send each line as a message, and print the replies in their order")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 0, "how long to wait for the reply, up to 1h (default 1m)")
	cmd.Flags().StringVar(&o.ContentType, "content-type", "", "media type of the message (default application/json if it is JSON, else text/plain)")
	onCluster(cmd, func(ctx context.Context, c *cli.Cluster, args []string) error {
		o.Target = args[0]
		if len(args) == 2 {
			o.Payload = args[1]
		}
		return c.Send(ctx, o, os.Stdin, os.Stdout, os.Stderr)
	})
	return cmd
}

func convertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "convert -f FILE",
		Short: "Convert Containers, ReplicaSets and Services of an in-process mini Kubernetes, and print the result",
		Args:  exactly(0, "-f FILE"),
	}
	file := cmd.Flags().StringP("filename", "f", "", "file or directory of manifests, - for standard input")
	namespace := cmd.Flags().StringP("namespace", "n", "", "namespace of what is printed (default none)")
	_ = cmd.MarkFlagRequired("filename")
	cmd.RunE = func(*cobra.Command, []string) error {
		return cli.ConvertLegacy(*file, *namespace, os.Stdin, os.Stdout)
	}
	return cmd
}

func applyLegacyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply-legacy -f FILE",
		Short: "Convert manifests of an in-process mini Kubernetes, and apply the result",
		Args:  exactly(0, "-f FILE"),
	}
	file := cmd.Flags().StringP("filename", "f", "", "file or directory of manifests, - for standard input")
	_ = cmd.MarkFlagRequired("filename")
	onCluster(cmd, func(ctx context.Context, c *cli.Cluster, _ []string) error {
		return c.ApplyLegacy(ctx, *file, os.Stdin, os.Stdout)
	})
	return cmd
}

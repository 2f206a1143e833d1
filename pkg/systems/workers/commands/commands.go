// Package commands is the command line of workers: sending messages, managing queues, and converting manifests of the
// mini Kubernetes. Its invariant: it only reports a message as sent after the API server has accepted it.
package commands

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/systems/command"
)

type commands struct{ command.Connector }

// New returns the commands of workers. kinds are the API resources of the system.
func New(kinds []metav1.APIResource) []*cobra.Command {
	k := commands{command.Connector{Kinds: kinds}}
	return []*cobra.Command{k.send(), k.queue(), k.applyLegacy(), k.convert()}
}

type cluster struct{ *command.Cluster }

func (k commands) send() *cobra.Command {
	var o SendOptions
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
	cmd.Flags().BoolVar(&o.Batch, "batch", false, "send each line as a message, and print the IDs or replies in order")
	cmd.Flags().BoolVar(&o.Objects, "objects", false,
		"with --batch: each line is a JSON object with id, key and data (only data is required), or a CloudEvent")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 0, "how long to wait for the reply, up to 1h (default 1m)")
	cmd.Flags().DurationVar(&o.Delay, "delay", 0, "how long the message waits at least, up to 24h")
	cmd.Flags().DurationVar(&o.Expire, "expire", 0, "how long the message waits at most, up to 24h (default queueSeconds)")
	cmd.Flags().StringVar(&o.ID, "id", "", "your ID of the message: a repetition within five minutes is not queued again")
	cmd.Flags().StringVar(&o.Key, "key", "", "key whose messages are handled one at a time, in order")
	cmd.Flags().StringVar(&o.ContentType, "content-type", "",
		"media type of the message (default application/json if it is JSON, else text/plain)")
	k.OnCluster(cmd, func(ctx context.Context, c *command.Cluster, args []string) error {
		for _, name := range []string{"id", "key"} {
			if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
				return fmt.Errorf("--%s is empty: leave it out, or give one", name)
			}
		}
		o.Target, o.Trace = args[0], os.Getenv("TRACEPARENT")
		if len(args) == 2 {
			o.Payload = args[1]
		}
		return cluster{c}.Send(ctx, o, os.Stdin, os.Stdout, os.Stderr)
	})
	return cmd
}

func (k commands) convert() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "convert -f FILE",
		Short: "Print manifests of the in-process mini Kubernetes as Workers",
		Long:  "Converts Containers, ReplicaSets and Services of the in-process mini Kubernetes to Workers, and prints them.",
		Args:  command.Exactly(0, "-f FILE", "filename"),
	}
	file := cmd.Flags().StringP("filename", "f", "", "file or directory of manifests, - for standard input")
	namespace := cmd.Flags().StringP("namespace", "n", "", "namespace of the printed objects (default none)")
	cmd.RunE = func(*cobra.Command, []string) error {
		return ConvertLegacy(*file, *namespace, os.Stdin, os.Stdout)
	}
	return cmd
}

func (k commands) applyLegacy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply-legacy -f FILE",
		Short: "Apply manifests of the in-process mini Kubernetes as Workers",
		Args:  command.Exactly(0, "-f FILE", "filename"),
	}
	file := cmd.Flags().StringP("filename", "f", "", "file or directory of manifests, - for standard input")
	k.OnCluster(cmd, func(ctx context.Context, c *command.Cluster, _ []string) error {
		return cluster{c}.ApplyLegacy(ctx, *file, os.Stdin, os.Stdout)
	})
	return cmd
}

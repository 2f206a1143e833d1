package commands

import (
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"

	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func (k commands) smoke() *cobra.Command {
	var o BuildbarnSmokeOptions
	cmd := &cobra.Command{
		Use:   "smoke",
		Short: "Execute one action on a farm, and time each step",
		Long: `Uploads an action that copies a file, executes it through the frontend, checks its output, and looks
whether the farm would execute it again. It uses the Remote Execution API (version 2), so it works
with any farm. The action is /bin/sh with mkdir and cat, and differs each time. For a farm of this
cluster with TLS it uses the Secret of the farm's clients, unless flags name files.`,
		Example: `  coracle buildbarn smoke -n buildbarn
  coracle buildbarn smoke --frontend 127.0.0.1:8980 --instance main --platform OSFamily=linux
  coracle buildbarn smoke --frontend farm.example.com:443 --tls -o json`,
		Args: command.Exactly(0, "[-n NAMESPACE] [--frontend HOST:PORT]"),
	}
	f := cmd.Flags()
	kubeconfig := f.String("kubeconfig", "", "kubeconfig of the cluster with the farm (default this machine's)")
	namespace := f.StringP("namespace", "n", "", "namespace of the farm (default the kubeconfig's)")
	f.StringVar(&o.Frontend, "frontend", "",
		"host:port of the frontend (default the only frontend in the namespace)")
	f.StringVar(&o.Instance, "instance", "", "name of the instance")
	f.StringArrayVar(&o.Platform, "platform", nil,
		"name=value of a platform property by which the worker is chosen; repeatable")
	f.DurationVar(&o.Timeout, "timeout", time.Minute, "how long the action may wait for a worker and run")
	f.BoolVar(&o.TLS, "tls", false, "use TLS, with the system's authorities unless --ca is given")
	f.StringVar(&o.CA, "ca", "", "file with the authorities of the frontend's certificate, in PEM format")
	f.StringVar(&o.Cert, "cert", "", "file with a client certificate, in PEM format")
	f.StringVar(&o.Key, "key", "", "file with the client certificate's key")
	f.StringVar(&o.Token, "token-file", "", "file with a token, for a frontend that takes tokens")
	f.StringVar(&o.ServerName, "server-name", "", "name in the frontend's certificate (default the host of --frontend)")
	f.StringVarP(&o.Output, "output", "o", "", "json instead of lines")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// The returned errors include what gRPC would log.
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
		return BuildbarnSmoke(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), func() (*command.Cluster, error) {
			return k.Connect(*kubeconfig, *namespace)
		}, o)
	}
	return cmd
}

package commands

import (
	"errors"
	"log/slog"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// Agent returns `coracle agent kontrol`, which connects a cluster to a hub that cannot reach it.
func Agent() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kontrol",
		Short: "Connect this cluster to a Kontrol hub that cannot reach it",
		Long: `Use it when the hub cannot reach this cluster, for example behind NAT. A hub that can reach the cluster
needs no agent: coracle kontrol clusters add NAME --kubeconfig FILE. coracle agent alone is something
else: it joins this machine to a cluster as a node.

Opens one connection to the hub, through which the hub applies and watches the objects of this
cluster. The hub may do what the kubeconfig's user may, and no more. A connection that ends is made
again. The command stays in the foreground: run it as a service, one for each cluster.`,
		Example: `  # 1. On the hub: register the cluster, and make its token
  coracle kontrol clusters add boat --pull --token-file boat.token
  # 2. Copy boat.token to a machine that reaches both the cluster and the hub, and run there
  coracle agent kontrol --hub https://hub.example.com:6443 --token-file boat.token
  # 3. On the hub: READY becomes True
  coracle kontrol clusters`,
		Args: command.Exactly(0, "--hub URL --token-file FILE [--kubeconfig FILE]"),
	}
	f := cmd.Flags()
	hubs := f.StringArray("hub", nil, "URL of the hub's API server; may be repeated")
	file := f.String("token-file", "", "file with the token, and the authority of the hub's certificate")
	kubeconfig := f.String("kubeconfig", "", "kubeconfig of the cluster to connect (default this machine's)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *file == "" {
			return errors.New("--token-file is required: create the file with `coracle kontrol clusters add NAME --pull` " +
				"on the hub")
		}
		c, err := command.Connector{}.Connect(*kubeconfig, "")
		if err != nil {
			return err
		}
		target, err := url.Parse(c.REST.Host)
		if err != nil {
			return err
		}
		transport, err := rest.TransportFor(c.REST)
		if err != nil {
			return err
		}
		a := &pull.Agent{
			Hubs:      *hubs,
			TokenFile: *file,
			Target:    target,
			Transport: transport,
			Log:       slog.New(slog.NewTextHandler(os.Stderr, nil)),
		}
		return a.Run(cmd.Context())
	}
	return cmd
}

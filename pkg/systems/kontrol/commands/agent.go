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
		Long: `Opens one connection to the hub, through which the hub applies and watches the objects of this
cluster. The hub may do what the kubeconfig's user may, and no more. A connection that ends is made
again.

The token is made on the hub: coracle kontrol clusters add NAME --pull --token-file FILE`,
		Example: `  coracle agent kontrol --hub https://hub.example.com:6443 --token-file boat.token`,
		Args:    command.Exactly(0, "--hub URL --token-file FILE [--kubeconfig FILE]"),
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

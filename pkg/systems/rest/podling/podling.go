// Package podling is Podling's command line against the REST facade, with the same commands, flags and output. It runs
// when the binary is called by a link of that name.
//
// It adds the flag --ca-file, for the cluster's own CA, and logs --follow.
package podling

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Name is the name of the link.
const Name = "podling"

const defaultMaster = "http://localhost:8080"

// maxFile bounds the configuration file, in bytes.
const maxFile = 64 << 10

type options struct {
	Master  string `yaml:"master"`
	Token   string `yaml:"token"`
	CAFile  string `yaml:"ca-file"`
	config  string
	verbose bool
}

type app struct {
	options
	out    io.Writer
	client *client
}

// Command returns the command line.
func Command() *cobra.Command {
	a := &app{}
	var flags options
	cmd := &cobra.Command{
		Use: Name, Short: "Run tasks, pods and services through the REST facade",
		Long: `Podling's command line, for Coracle's REST facade (coracle start --rest-address).

The facade is found by --master, PODLING_MASTER_URL or the configuration file;
its token by --token, PODLING_TOKEN or the file, or in the URL:
https://any:TOKEN@host:port.`,
		SilenceErrors: true, SilenceUsage: true,
	}
	f := cmd.PersistentFlags()
	f.StringVar(&flags.config, "config", "",
		"YAML file with master, token and ca-file (default $HOME/.podling.yaml where it exists)")
	f.StringVar(&flags.Master, "master", "", "URL of the facade (default "+defaultMaster+")")
	f.StringVar(&flags.Token, "token", "", "token of the facade")
	f.StringVar(&flags.CAFile, "ca-file", "", "file with the CA of the facade's certificate")
	f.BoolVarP(&flags.verbose, "verbose", "v", false, "show more")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		a.out = cmd.OutOrStdout()
		if a.options, err = flags.merge(os.Getenv); err != nil {
			return err
		}
		a.client, err = newClient(a.options)
		return err
	}
	cmd.AddCommand(a.run(), a.ps(), a.nodes(), a.logs(), a.prune(), a.pod(), a.service())
	return cmd
}

// merge sets the options without a flag from the environment, the file and the defaults.
func (o options) merge(env func(string) string) (options, error) {
	file, err := readFile(o.config, env("HOME"))
	if err != nil {
		return o, err
	}
	o.Master = cmp.Or(o.Master, env("PODLING_MASTER_URL"), file.Master, defaultMaster)
	o.Token = cmp.Or(o.Token, env("PODLING_TOKEN"), file.Token)
	o.CAFile = cmp.Or(o.CAFile, env("PODLING_CA_FILE"), file.CAFile)
	return o, nil
}

// readFile reads the configuration file. Only a file that the user named must exist.
func readFile(path, home string) (options, error) {
	named := path != ""
	if !named {
		path = filepath.Join(home, ".podling.yaml")
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && !named {
		return options{}, nil
	}
	if err != nil {
		return options{}, err
	}
	defer f.Close()
	data, err := bounded.All(f, maxFile)
	if err != nil {
		return options{}, fmt.Errorf("%s: %w", path, err)
	}
	var o options
	if err := yaml.Unmarshal(data, &o); err != nil {
		return options{}, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

// remove is the command that deletes an object by its ID.
func (a *app) remove(kind, title string) *cobra.Command {
	id := strings.ToUpper(title) + "-ID"
	cmd := &cobra.Command{
		Use: "delete " + id, Short: "Delete a " + strings.ToLower(title), Args: exactly(1, id),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.client.do(cmd.Context(), http.MethodDelete, at(kind, args[0]), nil, nil); err != nil {
			return fmt.Errorf("failed to delete %s: %w", strings.ToLower(title), err)
		}
		fmt.Fprintf(a.out, "%s %s deleted successfully\n", title, args[0])
		return nil
	}
	return cmd
}

func exactly(n int, usage string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("usage: %s %s", cmd.CommandPath(), usage)
		}
		return nil
	}
}
